// SPDX-License-Identifier: Apache-2.0

package gpu

import "sync/atomic"

// Word is what ordered operations, atomics and shuffles move.
type Word interface {
	~int32 | ~uint32 | ~int64 | ~uint64 | ~float32
}

// Int is a Word that can be added to.
type Int interface {
	~int32 | ~uint32 | ~int64 | ~uint64
}

// Order says what an operation orders.
type Order int32

// Orders, weakest first.
const (
	Relaxed Order = iota // this word only
	Acquire              // a load: later operations come after it
	Release              // a store: earlier operations come before it
	AcqRel               // a read-modify-write: both

	// Phased is for a store of a word that says by a bit of its own that it is new, and carries all that its reader
	// needs: nothing before it has to be visible. On a GPU it is relaxed, where each release store to the host takes
	// half a microsecond (520 ns on an H200, an 8-word descriptor so 4 us); on the CPU, where a release costs nothing,
	// it is one, so that the race detector sees who handed the word over.
	Phased
)

// Scope says among which threads an operation is ordered. Constants are passed, never variables: they are part of the
// instruction.
type Scope int32

// Scopes, widest last.
const (
	ScopeThread Scope = iota // nothing
	ScopeBlock               // threads of this block
	ScopeGPU                 // threads of this device
	ScopeSys                 // all devices and the host
)

// Load reads *p with order Relaxed or Acquire. It is never torn and never taken out of a loop.
func Load[T Word](p Ptr[T], _ Order, _ Scope) T {
	if is64[T]() {
		return from64[T](atomic.LoadUint64(as64(p)))
	}
	return from32[T](atomic.LoadUint32(as32(p)))
}

// Store writes *p with order Relaxed, Release or Phased.
func Store[T Word](p Ptr[T], v T, _ Order, _ Scope) {
	if is64[T]() {
		store64(as64(p), to64(v))
		return
	}
	store32(as32(p), to32(v))
}

// AtomicAdd adds v to *p and returns what was there.
//
// On a GPU it must not be used on host memory, nor host atomics on device memory: neither is atomic against the other
// over PCIe.
func AtomicAdd[T Int](p Ptr[T], v T, _ Order, _ Scope) T {
	if checked {
		p.checkOwner()
	}
	if is64[T]() {
		return from64[T](atomic.AddUint64(as64(p), to64(v))) - v
	}
	return from32[T](atomic.AddUint32(as32(p), to32(v))) - v
}

// AtomicCAS puts next where old is and says whether it was there.
func AtomicCAS[T Int](p Ptr[T], old, next T, _ Order, _ Scope) bool {
	if checked {
		p.checkOwner()
	}
	if is64[T]() {
		return atomic.CompareAndSwapUint64(as64(p), to64(old), to64(next))
	}
	return atomic.CompareAndSwapUint32(as32(p), to32(old), to32(next))
}

// AtomicExch puts v into *p and returns what was there.
func AtomicExch[T Int](p Ptr[T], v T, _ Order, _ Scope) T {
	if checked {
		p.checkOwner()
	}
	if is64[T]() {
		return from64[T](atomic.SwapUint64(as64(p), to64(v)))
	}
	return from32[T](atomic.SwapUint32(as32(p), to32(v)))
}

// AtomicMax raises *p to v if it is less, and returns what was there.
func AtomicMax[T Int](p Ptr[T], v T, o Order, s Scope) T {
	for {
		old := Load(p, Acquire, ScopeSys)
		if old >= v || AtomicCAS(p, old, v, o, s) {
			return old
		}
	}
}
