// SPDX-License-Identifier: Apache-2.0

// Unsafe: takes 8 bytes of a region for a signal's word. The caller has checked bounds and alignment; regions that hold
// signals start at a page. The conformance kit runs it under -race, with pointer checks on.

package tcp

import (
	"sync/atomic"
	"unsafe"
)

func wordAt(mem []byte, off uint64) *uint64 { return (*uint64)(unsafe.Pointer(&mem[off])) }

func addWord(w *uint64, v uint64) { atomic.AddUint64(w, v) }
