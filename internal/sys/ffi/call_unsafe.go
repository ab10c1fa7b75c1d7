// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Unsafe: hands a Call to the assembly stub through runtime.cgocall, which runs it on the system stack, with the scheduler
// told. noescape is right: the stub reads and writes the Call while it runs and keeps nothing of it, and the goroutine's
// stack does not move meanwhile. TestShapes covers it.

package ffi

import "unsafe"

//go:noescape
//go:linkname cgocall runtime.cgocall
func cgocall(fn uintptr, arg unsafe.Pointer) int32

// stub is the address of the assembly stub: it is C's, and so has no Go declaration.
var stub uintptr

// Do makes the call. It may be made from any goroutine; a call that blocks holds a thread and nothing else.
func (c *Call) Do() { cgocall(stub, unsafe.Pointer(c)) }
