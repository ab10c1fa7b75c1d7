// SPDX-License-Identifier: Apache-2.0

package gin

import "github.com/doorbell-net/doorbell/gpu"

// Multimem is the windows of all LSA peers at once, this rank's among them: what is stored reaches each of them, what is
// loaded is reduced over them. It stands for the address of a multicast object (NCCL's device headers: multimem pointer);
// here it is emulated by a loop over the peers, in the order of their LSA ranks 0, 1, 2, ... A device whose hardware does
// it reduces in an order of its own: equal results are claimed for integers, and for Min and Max.
//
// Stores and loads are plain: a barrier stands between them and those of other ranks. It is to be used while the window
// is registered.
type Multimem struct {
	w     Window
	bytes uint64 // of the smallest part; 0 of what was refused
	ranks int32
}

// Multimem is the window of all LSA peers. Invalid: a communicator without it (Needs.Multimem), a window that is not
// registered, one that does not begin at a multiple of 16 bytes on each peer.
func (c *Context) Multimem(w Window) (Multimem, Status) {
	if c.id < 0 || c.dc.Multimem == 0 || w.Info.IsNil() || w.Gen == 0 || generation(w) != w.Gen {
		return Multimem{}, Invalid
	}
	m := Multimem{w: w, bytes: w.Size, ranks: c.dc.LSASize}
	for p := range m.ranks {
		if baseOf(&w, w.LSA0+p).Addr()&15 != 0 {
			return Multimem{}, Invalid
		}
		m.bytes = min(m.bytes, sizeOf(&w, w.LSA0+p))
	}
	return m, OK
}

// Bytes is how many bytes each peer's part has: the size of the smallest.
func (m *Multimem) Bytes() uint64 { return m.bytes }

// Element is what is stored at once.
type Element interface {
	gpu.Word | F16 | BF16 | gpu.U32x2 | gpu.U32x4
}

// holds says whether a T at off lies in each peer's part, aligned.
func holds[T any](m *Multimem, off uint64) bool {
	n := gpu.SizeOf[T]()
	return off%n == 0 && inBounds(off, n, m.bytes)
}

// MultimemStore stores v at byte off of each LSA peer's part. Invalid, and nothing is written: an offset past the end of
// the smallest one, or no multiple of v's size.
func MultimemStore[T Element](m *Multimem, off uint64, v T) Status {
	if !holds[T](m, off) {
		return Invalid
	}
	for p := range m.ranks {
		gpu.Cast[T](LSAPointer(m.w, p, off)).Store(v)
	}
	return OK
}

// MultimemReduce loads the integer at byte off of each LSA peer's part and makes one of them. Invalid: as MultimemStore,
// and an operation that is none.
func MultimemReduce[T gpu.Int](m *Multimem, off uint64, op Op) (T, Status) {
	if !op.ofInts() || !holds[T](m, off) {
		return 0, Invalid
	}
	v := gpu.Cast[T](LSAPointer(m.w, 0, off)).Load()
	for p := int32(1); p < m.ranks; p++ {
		v = combineInts(op, v, gpu.Cast[T](LSAPointer(m.w, p, off)).Load())
	}
	return v, OK
}

// MultimemReduceFloat is MultimemReduce for floats, which have Sum, Min and Max. They are reduced as float32, in the order
// of the LSA ranks, and rounded once.
func MultimemReduceFloat[T Float[T]](m *Multimem, off uint64, op Op) (T, Status) {
	if !op.ofFloats() || !holds[T](m, off) {
		var none T
		return none, Invalid
	}
	first := gpu.Cast[T](LSAPointer(m.w, 0, off)).Load()
	v := first.Float32()
	for p := int32(1); p < m.ranks; p++ {
		v = combineFloats(op, v, gpu.Cast[T](LSAPointer(m.w, p, off)).Load().Float32())
	}
	return first.Round(v), OK
}
