// SPDX-License-Identifier: Apache-2.0

// Unsafe: fills a kernel's struct of arguments from the bytes that the driver was given.

package cuda_test

import "unsafe"

func bytesOf[T any](p *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)) }
