// SPDX-License-Identifier: Apache-2.0

package ffi

import "errors"

// ErrUnavailable is what Open's error wraps where no library can be opened on this system at all.
var ErrUnavailable = errors.New("foreign calls are there on linux/amd64 and linux/arm64 only")

// MaxArgs is how many arguments a call can have. cuLaunchKernel has 11.
const MaxArgs = 12

// Call is one call of a C function. It may live on the stack. The assembly stubs know its layout: 8-byte words, in the
// order of declaration.
type Call struct {
	Fn   uintptr          // the function's address, from Symbol
	Args [MaxArgs]uintptr // those that it does not have are passed too, and do no harm
	// Result is what it returned: for a function of a 32-bit result, the lower half.
	Result uintptr
	// Before, if not 0, is called first, on the same thread, with BeforeArg alone. If the lower half of its result is not 0,
	// that is the Result, and Fn is not called. It is for libraries that keep a current context for each thread: a goroutine
	// may change threads between two calls, but not within one.
	Before, BeforeArg uintptr
}

// maxString bounds what String reads.
const maxString = 1 << 16

// String copies the C string at addr, 64 KiB of it at most; empty for a null address.
func String(addr uintptr) string {
	if addr == 0 {
		return ""
	}
	n := 0
	for n < maxString && byteAt(addr, n) != 0 {
		n++
	}
	return string(Bytes(addr, n))
}
