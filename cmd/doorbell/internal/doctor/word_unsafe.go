// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/doorbell-net/doorbell/internal/sys"
)

// The futex calls take a plain word; an atomic.Uint32 is one and nothing else.

func sleepOn(w *atomic.Uint32, d time.Duration) {
	sys.FutexWait((*uint32)(unsafe.Pointer(w)), 0, d)
}

func wake(w *atomic.Uint32) { sys.FutexWake((*uint32)(unsafe.Pointer(w)), 1) }
