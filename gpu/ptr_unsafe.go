// SPDX-License-Identifier: Apache-2.0

// Unsafe: device addresses. A Ptr is not checked: kernels compute addresses from windows whose bounds the device API
// has checked. Memory behind a Ptr is kept alive by the host object that it came from (buffer, window, device
// communicator), never by the Ptr in shared memory. The conformance tests run under -race, with pointer checks on.

package gpu

import "unsafe"

// Ptr is the address of a T in memory that the device can reach. The zero Ptr is nil.
type Ptr[T any] struct{ p unsafe.Pointer }

// PtrTo is the address of a Go variable. Host code uses it; the variable must stay alive while kernels use it.
func PtrTo[T any](p *T) Ptr[T] { return Ptr[T]{unsafe.Pointer(p)} }

// PtrOf is the address of the first byte of b, nil for an empty slice.
func PtrOf(b []byte) Ptr[byte] { return Ptr[byte]{unsafe.Pointer(unsafe.SliceData(b))} }

// Cast is the same address, taken for one of a U.
func Cast[U, T any](p Ptr[T]) Ptr[U] { return Ptr[U](p) }

// At is the address of element i after p.
func (p Ptr[T]) At(i int) Ptr[T] { return Ptr[T]{unsafe.Add(p.p, i*int(unsafe.Sizeof(*new(T))))} }

// Byte is the address n bytes after p.
func (p Ptr[T]) Byte(n uint64) Ptr[T] { return Ptr[T]{unsafe.Add(p.p, n)} }

// Load reads a T, unordered.
func (p Ptr[T]) Load() T {
	if checked {
		p.checkAligned()
	}
	return *(*T)(p.p)
}

// Store writes a T, unordered.
func (p Ptr[T]) Store(v T) {
	if checked {
		p.checkAligned()
	}
	*(*T)(p.p) = v
}

// Raw is the address as a Go pointer.
func (p Ptr[T]) Raw() *T { return (*T)(p.p) }

// IsNil says whether p is the zero Ptr.
func (p Ptr[T]) IsNil() bool { return p.p == nil }

// Addr is the address as a number, for alignment tests and messages.
func (p Ptr[T]) Addr() uint64 { return uint64(uintptr(p.p)) }

// SizeOf is how many bytes a T has.
func SizeOf[T any]() uint64 { return uint64(unsafe.Sizeof(*new(T))) }

// Slice is the n elements at p.
func Slice[T any](p Ptr[T], n int) []T { return unsafe.Slice((*T)(p.p), n) }

func as32[T Word](p Ptr[T]) *uint32 {
	if checked {
		p.checkAligned()
	}
	return (*uint32)(p.p)
}

func as64[T Word](p Ptr[T]) *uint64 {
	if checked {
		p.checkAligned()
	}
	return (*uint64)(p.p)
}

func from32[T Word](v uint32) T         { return *(*T)(unsafe.Pointer(&v)) }
func from64[T Word](v uint64) T         { return *(*T)(unsafe.Pointer(&v)) }
func to32[T Word](v T) uint32           { return *(*uint32)(unsafe.Pointer(&v)) }
func to64[T Word](v T) uint64           { return *(*uint64)(unsafe.Pointer(&v)) }
func is64[T Word]() bool                { return unsafe.Sizeof(*new(T)) == 8 }
func bytesAt(p Ptr[byte], n int) []byte { return unsafe.Slice((*byte)(p.p), n) }
func bytesOf[T any](p *T) []byte        { return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)) }
