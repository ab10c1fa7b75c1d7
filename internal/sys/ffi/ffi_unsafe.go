// SPDX-License-Identifier: Apache-2.0

// Unsafe: addresses that C code gives and gets. What breaks the rules: an address that is a number keeps nothing alive, and
// memory that C names is not Go's. Callers keep what they pass alive over the call, and Addr forces it onto the heap, where
// it stays in place. Each function is tested against functions of the C library, under -race and with pointer checks.

package ffi

import "unsafe"

// never is false; the compiler does not know it.
var never bool

// Addr is the address of a variable, for an argument of a call. It makes the variable live on the heap: a stack may move
// before the call is made. Keep the variable alive (runtime.KeepAlive) until C is done with it.
func Addr[T any](p *T) uintptr {
	if never {
		panic(p) // who may panic with it needs it on the heap
	}
	return uintptr(unsafe.Pointer(p))
}

// Bytes is n bytes of foreign memory. They are as long-lived as the library says.
func Bytes(addr uintptr, n int) []byte { return unsafe.Slice((*byte)(pointer(addr)), n) }

// Words is n 64-bit words of foreign memory, at an address that is a multiple of 8.
func Words(addr uintptr, n int) []uint64 { return unsafe.Slice((*uint64)(pointer(addr)), n) }

func byteAt(addr uintptr, i int) byte { return *(*byte)(unsafe.Add(pointer(addr), i)) }

// pointer is foreign: the collector finds no heap object at it, and leaves it alone.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }
