// SPDX-License-Identifier: Apache-2.0

package gin

import "github.com/doorbell-net/doorbell/gpu"

// Multimem is the windows of all LSA peers at once, this rank's among them: what is stored reaches each of them, what is
// loaded is reduced over them. It is emulated by a loop over the peers, in the order of their LSA ranks 0, 1, 2, ..., but where
// the window has an address of a multicast object and the package is compiled for GPUs that have those (//gpu:arch sm_90):
// there stores of 4 bytes and more, and reductions of integers and sums of float32, are one instruction (NCCL's device headers:
// multimem pointer). It reduces in an order of its own: equal results are claimed for integers, and for Min and Max.
//
// Stores and loads are plain: a barrier stands between them and those of other ranks. It is to be used while the window
// is registered.
type Multimem struct {
	w     Window
	all   gpu.Ptr[byte] // stands for each peer's bytes; nil where a loop does
	bytes uint64        // of the smallest part; 0 of what was refused
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
	if gpu.HasMultimem() {
		m.all = gpu.PtrTo(&w.Info.Raw().Multimem).Load()
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
	if gpu.HasMultimem() && !m.all.IsNil() && storeAll(m.all.Byte(off), v) {
		return OK
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
	if gpu.HasMultimem() && !m.all.IsNil() {
		return reduceAll(gpu.Cast[T](m.all.Byte(off)), op), OK
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
	if gpu.HasMultimem() && !m.all.IsNil() && op == Sum && gpu.SizeOf[T]() == 4 {
		var f32 T
		return f32.Round(gpu.MultimemSum(gpu.Cast[float32](m.all.Byte(off)))), OK
	}
	first := gpu.Cast[T](LSAPointer(m.w, 0, off)).Load()
	v := first.Float32()
	for p := int32(1); p < m.ranks; p++ {
		v = combineFloats(op, v, gpu.Cast[T](LSAPointer(m.w, p, off)).Load().Float32())
	}
	return first.Round(v), OK
}

// storeAll stores v by one instruction, if there is one of its size.
func storeAll[T Element](to gpu.Ptr[byte], v T) bool {
	from := gpu.PtrTo(&v)
	switch gpu.SizeOf[T]() {
	case 4:
		gpu.MultimemStore(gpu.Cast[uint32](to), gpu.Cast[uint32](from).Load())
	case 8:
		gpu.MultimemStore(gpu.Cast[uint64](to), gpu.Cast[uint64](from).Load())
	case 16:
		gpu.MultimemStore4(gpu.Cast[gpu.U32x4](to), gpu.Cast[gpu.U32x4](from).Load())
	default:
		return false
	}
	return true
}

// reduceAll reduces by one instruction. op is one of integers.
func reduceAll[T gpu.Int](p gpu.Ptr[T], op Op) T {
	switch op {
	case Min:
		return gpu.MultimemMin(p)
	case Max:
		return gpu.MultimemMax(p)
	case And:
		return gpu.MultimemAnd(p)
	case Or:
		return gpu.MultimemOr(p)
	}
	return gpu.MultimemSum(p)
}
