// Package constructs has a kernel for each thing that device code is made of.
package constructs

import (
	"math"
	"math/bits"

	"github.com/doorbell-net/doorbell/gpu"
)

type Args struct {
	Out, In gpu.Ptr[uint32]
	Vec     gpu.Ptr[gpu.U32x4]
	F       gpu.Ptr[float32]
	N       int32
	X, Y    float32
	Wide    uint64
}

//gpu:kernel
func Spin(t gpu.Thread, a Args) {
	for gpu.Load(a.In, gpu.Acquire, gpu.ScopeSys) == 0 {
	}
	a.Out.Store(1)
}

//gpu:kernel
func Endless(t gpu.Thread, a Args) {
	a.Out.Store(1)
	for a.N > 0 {
	}
}

//gpu:kernel
func Rounded(t gpu.Thread, a Args) { a.F.Store(float32(a.X*a.Y) + a.F.Load()) }

//gpu:kernel
func Vector(t gpu.Thread, a Args) {
	a.Vec.At(1).Store(a.Vec.Load())
	a.Vec.At(2).Store(gpu.LoadNC(a.Vec.At(3)))
}

//gpu:kernel
func Threads(t gpu.Thread, a Args) {
	v := uint32(t.Lane() + t.Warp() + t.Warps() + t.Block() + t.Blocks() + t.Index() + t.Threads())
	t.SyncWarp()
	v += gpu.ShflXor(t, v, 8) + gpu.ShflIdx(t, v, 3)
	x := gpu.ShflXor(t, float32(v), 4)
	w := gpu.ShflIdx(t, a.Wide+uint64(v), 2)
	if gpu.Any(t, v > 3) && !gpu.All(t, v > 4) {
		v += gpu.Ballot(t, v > 5)
	}
	t.SyncBlock()
	a.Out.At(int(t.Index())).Store(v + uint32(x) + uint32(w))
}

//gpu:kernel
func Waits(t gpu.Thread, a Args) {
	start := t.Clock()
	round := int32(0)
	for gpu.Load(a.In, gpu.Relaxed, gpu.ScopeGPU) == 0 && t.Clock()-start < a.Wide {
		t.Relax(round)
		if t.Idle(round, t.Clock()-start) {
			a.Out.Store(99) // never on a GPU
		}
		round++
	}
	t.Wake(a.Out)
}

var block gpu.Shared[[64]float32]

//gpu:kernel
func Shared(t gpu.Thread, a Args) {
	s := block.Of(t)
	s[t.Index()] = a.F.At(int(t.Index())).Load()
	t.SyncBlock()
	a.F.At(int(t.Index())).Store(s[63-t.Index()])
}

type counter struct {
	t    gpu.Thread
	to   *[4]uint32
	from gpu.Ptr[uint32]
	n    int32
}

func (c *counter) add(i int32, v uint32) (int32, uint32) {
	c.to[i&3] += v
	c.n++
	return c.n, c.to[i&3]
}

//gpu:kernel
func Locals(t gpu.Thread, a Args) {
	var sums [4]uint32
	c := counter{t: t, to: &sums, from: a.In}
	for i := range int32(8) {
		_, v := c.add(i, c.from.At(int(i)).Load())
		a.Out.At(int(i)).Store(v)
	}
	a.Out.At(9).Store(uint32(c.n) + sums[0] + sums[3])
}

//gpu:kernel
func Indexed(t gpu.Thread, a Args) {
	var v [8]uint32
	for i := range v {
		v[i] = a.In.At(i).Load()
	}
	a.Out.Store(v[a.N&7])
}

func sum[T gpu.Word](s []T) (v T) {
	for _, x := range s {
		v += x
	}
	return v
}

func apply(p gpu.Ptr[uint32], n int, f func(uint32) uint32) {
	for i := range n {
		p.At(i).Store(f(p.At(i).Load()))
	}
}

//gpu:kernel
func Functions(t gpu.Thread, a Args) {
	k := uint32(a.N)
	apply(a.Out, 4, func(v uint32) uint32 { return v*k + 1 })
	apply(a.In, 4, bits.ReverseBytes32)
	apply(a.In, 2, double)
	s := gpu.Slice(a.F, int(a.N))
	a.F.Store(sum(s[1:3]) + sum(s))
	a.Out.Store(sum(gpu.Slice(a.In, len(s))))
}

func double(v uint32) uint32 { return 2 * v }

// ordered is compiled once for each order.
func ordered(p gpu.Ptr[uint32], o gpu.Order, s gpu.Scope) uint32 { return deeper(p, s, o) }

func deeper(p gpu.Ptr[uint32], s gpu.Scope, o gpu.Order) uint32 { return gpu.Load(p, o, s) }

//gpu:kernel
func Passed(t gpu.Thread, a Args) {
	v := ordered(a.In, gpu.Relaxed, gpu.ScopeGPU)
	a.Out.Store(v + ordered(a.In, gpu.Acquire, gpu.ScopeSys))
}

//gpu:kernel
func Maths(t gpu.Thread, a Args) {
	w := math.Float32bits(a.X)
	w += uint32(bits.OnesCount32(w) + bits.TrailingZeros64(a.Wide) + bits.LeadingZeros32(w) + bits.Len64(a.Wide))
	a.F.Store(math.Float32frombits(bits.RotateLeft32(w, 7)) + float32(math.Sqrt(float64(a.Y))) + float32(math.FMA(float64(a.X), 2, 3)))
	a.Out.Store(gpu.BF16x2(a.X, a.Y))
}

//gpu:kernel
func Panics(t gpu.Thread, a Args) {
	if a.N == 3 {
		panic("three: " + name(a.N) + " is too many")
	}
	a.Out.Store(uint32(a.N))
}

func name(n int32) string { return "three" }

//gpu:kernel
func Checked(t gpu.Thread, a Args) {
	s := gpu.Slice(a.In, int(a.N))
	a.Out.Store(s[a.Wide] / uint32(a.N))
}

//gpu:kernel warps=4
func Bounded(t gpu.Thread, a Args) {
	gpu.CopyBlock(t, gpu.Cast[byte](a.Out), gpu.Cast[byte](a.In), a.Wide)
}

//gpu:kernel
func OtherTarget(t gpu.Thread, a Args) {
	if gpu.WarpSize == 1 {
		_ = make([]byte, a.N)
	}
	gpu.CopyWarp(t, gpu.Cast[byte](a.Out), gpu.Cast[byte](a.In), a.Wide)
	gpu.CopyThread(gpu.Cast[byte](a.Out), gpu.Cast[byte](a.In), a.Wide)
}

//gpu:kernel
func Chosen(t gpu.Thread, a Args) {
	b := a
	if a.N > 2 {
		b = other(a)
	}
	pick(b)
}

func other(a Args) Args { return Args{Out: a.In, N: a.N + 5} }

func pick(a Args) { a.Out.Store(uint32(a.N)) }
