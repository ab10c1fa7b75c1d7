// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"fmt"
	"math"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/num"
)

// draw is a number that each rank can tell of each other.
func draw(rank int32, cell, i uint64) uint64 {
	x := (uint64(rank)+1)*0x9e3779b97f4a7c15 ^ (cell+3)*0xbf58476d1ce4e5b9 ^ i*0x94d049bb133111eb
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>32
}

// reduceInts and reduceFloats are Multimem's arithmetic, dumb: over one number of each LSA rank in turn.
func reduceInts[T gpu.Int](op gin.Op, x []T) T {
	out := x[0]
	for _, v := range x[1:] {
		switch {
		case op == gin.Sum:
			out += v
		case op == gin.Min && v < out, op == gin.Max && v > out:
			out = v
		case op == gin.And:
			out &= v
		case op == gin.Or:
			out |= v
		}
	}
	return out
}

func reduceFloats(op gin.Op, x []float32) float32 {
	out := x[0]
	for _, v := range x[1:] {
		a, b := float64(out), float64(v)
		switch {
		case op == gin.Sum:
			out += v
		case math.IsNaN(a):
			out = v
		case math.IsNaN(b):
		case op == gin.Min:
			out = float32(math.Min(a, b))
		case op == gin.Max:
			out = float32(math.Max(a, b))
		}
	}
	return out
}

// seen are the numbers of each LSA rank, as drawn.
func seen[T any](d *gin.DevComm, cell, i uint64, of func(uint64) T) (x []T) {
	for p := range d.LSASize {
		x = append(x, of(draw(d.Rank-d.LSARank+p, cell, i)))
	}
	return x
}

func checkInts[T gpu.Int](m *gin.Multimem, d *gin.DevComm, cell, i uint64) {
	for op := gin.Sum; op <= gin.Or; op++ {
		got, s := gin.MultimemReduce[T](m, 8*cell, op)
		ok(s, "reduce by %d", op)
		if x := seen(d, cell, i, func(v uint64) T { return T(v) }); got != reduceInts(op, x) {
			panic(fmt.Sprintf("operation %d over %#x gave %#x, want %#x", op, x, got, reduceInts(op, x)))
		}
	}
}

func checkFloats[T gin.Float[T]](m *gin.Multimem, d *gin.DevComm, cell, i uint64, value func(uint64) float32, round func(float32) uint64) {
	for op := gin.Sum; op <= gin.Max; op++ {
		got, s := gin.MultimemReduceFloat[T](m, 8*cell, op)
		ok(s, "reduce by %d", op)
		x := seen(d, cell, i, value)
		if want := reduceFloats(op, x); got.Bits() != round(want) && !(want != want && got.Float32() != got.Float32()) {
			panic(fmt.Sprintf("operation %d over %v gave %#x, want %v", op, x, got.Bits(), want))
		}
	}
}

// progMultimem reduces over numbers of which each LSA rank has stored its own, and stores numbers that reach all.
func progMultimem(r *rank) {
	const cells, rounds = 64, 20
	dc := r.devComm(doorbell.Needs{Multimem: true, Barriers: 1})
	recv := r.window(8*cells + 64*r.Rank()) // the smallest counts
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, lsa := gin.Open(&d, 0), gin.LSA(&d)
		m, s := c.Multimem(recv.Device())
		ok(s, "multimem")
		if want := 8*cells + 64*uint64(d.Rank-d.LSARank); m.Bytes() != want {
			panic(fmt.Sprintf("%d bytes, want %d", m.Bytes(), want))
		}
		mine := func(cell uint64) gpu.Ptr[uint64] { return gpu.Cast[uint64](recv.Device().Base.Byte(8 * cell)) }
		for i := range uint64(rounds) {
			for cell := range uint64(cells) {
				mine(cell).Store(draw(d.Rank, cell, i))
			}
			ok(c.LSABarrier(co, 0), "barrier")
			for cell := range uint64(cells) {
				checkInts[int32](&m, &d, cell, i)
				checkInts[uint32](&m, &d, cell, i)
				checkInts[int64](&m, &d, cell, i)
				checkInts[uint64](&m, &d, cell, i)
				checkFloats[gin.F32](&m, &d, cell, i, func(v uint64) float32 { return math.Float32frombits(uint32(v)) },
					func(f float32) uint64 { return uint64(math.Float32bits(f)) })
				checkFloats[gin.F16](&m, &d, cell, i, func(v uint64) float32 { return num.F16ToF32(uint16(v)) }, func(f float32) uint64 { return uint64(num.F32ToF16(f)) })
				checkFloats[gin.BF16](&m, &d, cell, i, func(v uint64) float32 { return num.BF16ToF32(uint16(v)) }, func(f float32) uint64 { return uint64(num.F32ToBF16(f)) })
			}
			ok(c.LSABarrier(co, 0), "barrier, end")
			// Each rank stores the cells that are its own, in all windows.
			for cell := range uint64(cells) {
				if int32(cell)%lsa.Ranks == lsa.Rank {
					ok(gin.MultimemStore(&m, 8*cell, draw(lsa.Rank, cell, i)), "store")
				}
			}
			ok(c.LSABarrier(co, 0), "barrier after stores")
			for cell := range uint64(cells) {
				if got, want := mine(cell).Load(), draw(int32(cell)%lsa.Ranks, cell, i); got != want {
					panic(fmt.Sprintf("cell %d has %#x, want %#x of LSA rank %d", cell, got, want, int32(cell)%lsa.Ranks))
				}
			}
			ok(c.LSABarrier(co, 0), "barrier at the end of a round")
		}
	})
	r.drop(dc, recv)
}

// progBadMultimem is what is refused: nothing is written.
func progBadMultimem(r *rank) {
	plain, dc := r.devComm(doorbell.Needs{Barriers: 1}), r.devComm(doorbell.Needs{Multimem: true, Barriers: 1})
	recv, gone := r.window(4096), r.window(64)
	part, err := recv.Buffer().Slice(8, 64)
	r.must(err)
	crooked, err := r.Register(r.ctx, part)
	r.must(err)
	stale := gone.Device()
	r.drop(gone)
	fill(recv.Buffer().Bytes(), canary)
	r.sync()
	r.run(func(t gpu.Thread) {
		d, none := dc.Device(), plain.Device()
		c, without, bad := gin.Open(&d, 0), gin.Open(&none, 0), gin.Open(&d, 1)
		refused := func(c *gin.Context, w gin.Window, what string) {
			m, s := c.Multimem(w)
			expect(s, gin.Invalid, "%s", what)
			expect(gin.MultimemStore(&m, 0, uint32(1)), gin.Invalid, "store to what was refused")
		}
		refused(&without, recv.Device(), "a communicator without it")
		refused(&bad, recv.Device(), "no context")
		refused(&c, stale, "a window that is gone")
		refused(&c, gin.Window{}, "no window")
		refused(&c, crooked.Device(), "a window that begins at 8")
		m, s := c.Multimem(recv.Device())
		ok(s, "multimem")
		for _, off := range []uint64{4096, 4093, 1, 2, ^uint64(0), ^uint64(3), 1 << 63} {
			expect(gin.MultimemStore(&m, off, uint32(1)), gin.Invalid, "store at %#x", off)
			_, s = gin.MultimemReduce[uint32](&m, off, gin.Sum)
			expect(s, gin.Invalid, "reduce at %#x", off)
			_, s = gin.MultimemReduceFloat[gin.F32](&m, off, gin.Sum)
			expect(s, gin.Invalid, "reduce floats at %#x", off)
		}
		expect(gin.MultimemStore(&m, 4088, gpu.U32x4{}), gin.Invalid, "store of 16 bytes at 4088")
		for _, op := range []gin.Op{-1, gin.Or + 1} {
			_, s = gin.MultimemReduce[int64](&m, 0, op)
			expect(s, gin.Invalid, "operation %d", op)
		}
		for _, op := range []gin.Op{-1, gin.And, gin.Or} {
			_, s = gin.MultimemReduceFloat[gin.BF16](&m, 0, op)
			expect(s, gin.Invalid, "operation %d of floats", op)
		}
		ok(c.LSABarrier(gin.ByThread(t), 0), "barrier")
		same(view(recv.Device(), 0, 4096), fill(make([]byte, 4096), canary), "after refusals")
	})
	r.drop(plain, dc, crooked, recv)
}
