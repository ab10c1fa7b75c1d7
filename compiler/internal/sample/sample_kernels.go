// SPDX-License-Identifier: Apache-2.0

// Package sample has kernels that do much in one thread and give the same on each machine: the compiler is held against
// Go's own with them.
package sample

import (
	"math"
	"math/bits"

	"github.com/doorbell-net/doorbell/gpu"
)

// Inputs is the numbers that a case takes, Outputs those that it gives.
const (
	Inputs  = 4
	Outputs = 64
)

// Args of the kernels. In has Cases*Inputs numbers, Out Cases*Outputs.
type Args struct {
	In, Out gpu.Ptr[uint64]
	Cases   int64
}

// writer appends to a case's outputs.
type writer struct {
	out gpu.Ptr[uint64]
	n   int
}

func (w *writer) put(v uint64) {
	w.out.At(w.n).Store(v)
	w.n++
}

func (w *writer) flag(b bool) {
	if b {
		w.put(1)
	} else {
		w.put(0)
	}
}

func (a *Args) at(i int64) (in gpu.Ptr[uint64], w writer) {
	return a.In.At(int(i * Inputs)), writer{out: a.Out.At(int(i * Outputs))}
}

// Integers has each operator on each width.
//
//gpu:kernel
func Integers(t gpu.Thread, a Args) {
	for i := range a.Cases {
		in, w := a.at(i)
		x, y, s := in.Load(), in.At(1).Load(), in.At(2).Load()
		unsigned(&w, x, y, s)
		signed(&w, int64(x), int64(y), s)
		unsigned(&w, uint32(x), uint32(y), s)
		signed(&w, int32(x), int32(y), s)
		unsigned(&w, uint16(x), uint16(y), s)
		signed(&w, int8(x), int8(y), s)
	}
}

func unsigned[T uint8 | uint16 | uint32 | uint64](w *writer, x, y T, s uint64) {
	w.put(uint64(x+y) ^ uint64(x-y)<<1 ^ uint64(x*y)<<2)
	w.put(uint64(x/(y|1)) ^ uint64(x%(y|1))<<3)
	w.put(uint64(x&y|x^y) ^ uint64(x&^y)<<5)
	w.put(uint64(x<<(s&127)) ^ uint64(x>>(s&127))<<1)
	w.put(uint64(x<<3) ^ uint64(x>>5) ^ uint64(^x) ^ uint64(-x))
	w.flag(x < y || x >= y && x == y)
	w.put(uint64(min(x, y)) - uint64(max(x, y)))
}

func signed[T int8 | int16 | int32 | int64](w *writer, x, y T, s uint64) {
	w.put(uint64(x+y) ^ uint64(x-y)<<1 ^ uint64(x*y)<<2)
	d := y | 1
	if d == -1 {
		d = 3 // the least number divided by -1 is not defined in unchecked builds
	}
	w.put(uint64(x/d) ^ uint64(x%d)<<3)
	w.put(uint64(x<<(s&127)) ^ uint64(x>>(s&127))<<1)
	w.flag(x < y)
	w.put(uint64(min(x, y)) - uint64(max(x, y)))
}

// Conversions goes between all kinds of numbers.
//
//gpu:kernel
func Conversions(t gpu.Thread, a Args) {
	for i := range a.Cases {
		in, w := a.at(i)
		x := in.Load()
		w.put(uint64(int8(x)))
		w.put(uint64(uint8(x)))
		w.put(uint64(int16(x)))
		w.put(uint64(int32(x)))
		w.put(uint64(uint32(x)))
		w.put(uint64(int64(int32(uint16(int8(x))))))
		w.put(uint64(math.Float32bits(float32(int32(x)))))
		w.put(uint64(math.Float32bits(float32(uint32(x)))))
		w.put(math.Float64bits(float64(x)))
		w.put(math.Float64bits(float64(int64(x))))
		f := math.Float32frombits(uint32(x)&0x3fffffff | 0x30000000) // small enough for each integer
		w.put(uint64(int32(f)))
		w.put(uint64(uint32(f)))
		w.put(uint64(int64(float64(f))))
		w.put(math.Float64bits(float64(f)))
		w.put(uint64(math.Float32bits(float32(float64(f) / 3))))
		w.put(uint64(bits.OnesCount64(x)) + uint64(bits.TrailingZeros32(uint32(x)))<<8 + uint64(bits.LeadingZeros64(x))<<16 + uint64(bits.Len32(uint32(x)))<<24)
		w.put(bits.RotateLeft64(x, int(in.At(1).Load()&63)) ^ bits.ReverseBytes64(x) ^ bits.Reverse64(x))
		w.put(uint64(bits.RotateLeft32(uint32(x), -7)) ^ uint64(bits.ReverseBytes32(uint32(x))))
	}
}

// Floats is float32 arithmetic, whose bits must be the same everywhere.
//
//gpu:kernel
//gpu:variant Cases=3
func Floats(t gpu.Thread, a Args) {
	for i := range a.Cases {
		in, w := a.at(i)
		x, y, z := float(in.Load()), float(in.At(1).Load()), float(in.At(2).Load())
		put := func(f float32) { w.put(uint64(math.Float32bits(f))) }
		put(gpu.Add(gpu.Mul(x, y), z))
		put(float32(x*y) - z)
		put(x / y)
		put(-x + y)
		put(min(x, y))
		put(max(x, y, z))
		put(gpu.BF16Lo(math.Float32bits(x)) + gpu.BF16Hi(math.Float32bits(y)))
		w.put(uint64(gpu.BF16x2(x, y)))
		w.flag(x < y)
		w.flag(x != y && x >= z)
		w.put(math.Float64bits(math.Sqrt(math.Abs(float64(x)))))
		w.put(math.Float64bits(math.Floor(float64(x)) + math.Ceil(float64(y)) - math.Trunc(float64(z))))
		w.put(math.Float64bits(math.FMA(float64(x), float64(y), float64(z))))
		u, v := special(in.Load(), x), special(in.At(3).Load(), y)
		w.flag(u < v)
		w.flag(u <= v)
		w.flag(u == v)
		w.flag(u != v)
		w.flag(u > v || !(u >= v))
		put(plain(min(u, v)))
		put(plain(max(u, v)))
		w.flag(float64(u) < float64(v) || math.IsNaN(float64(u)))
	}
}

// special is one of the numbers that are none, or f.
func special(k uint64, f float32) float32 {
	switch k % 6 {
	case 0:
		return math.Float32frombits(0x7fc00000) // NaN
	case 1:
		return math.Float32frombits(0xff800000) // -Inf
	case 2:
		return math.Float32frombits(0x80000000) // -0
	case 3:
		return 0
	}
	return f
}

// plain is f, any NaN as the same one.
func plain(f float32) float32 {
	if f != f {
		return math.Float32frombits(0x7fc00000)
	}
	return f
}

// float makes a number of moderate size of bits.
func float(b uint64) float32 { return math.Float32frombits(uint32(b)&0x87ffffff | 0x38000000) }

type pair struct {
	a uint8
	b uint64
	_ uint16
	c [3]uint16
	d bool
}

type node struct {
	p    pair
	next *pair
	rows [2][3]int32
}

// Values is structs, arrays, slices, pointers, closures and loops.
//
//gpu:kernel
func Values(t gpu.Thread, a Args) {
	for i := range a.Cases {
		in, w := a.at(i)
		x, y := in.Load(), in.At(1).Load()
		p := pair{a: uint8(x), b: y, c: [3]uint16{uint16(x), uint16(y), 7}, d: x > y}
		q := p
		q.c[y%3]++
		w.flag(p == q)
		w.flag(p.c == [3]uint16{uint16(x), uint16(y), 7})
		n := node{p: q, next: &p}
		n.rows[x&1][y%3] = int32(x)
		n.next.b += 5
		m := n
		m.rows[0][0]--
		w.put(p.b + uint64(m.p.a) + uint64(m.p.c[x%3]))
		w.put(uint64(m.rows[x&1][y%3]) ^ uint64(n.rows[0][0]))
		w.put(table(x)[y&3])

		var buf [10]uint64
		s := buf[2:8:9]
		for j := range s {
			s[j] = x*uint64(j) + y
		}
		w.put(uint64(len(s)) + uint64(cap(s))<<8 + uint64(copy(buf[:], s[1:]))<<16)
		w.put(buf[0] ^ buf[3] ^ buf[9] ^ sum(buf[1:6]))
		total := uint64(0)
		each(buf[:], func(v uint64) bool {
			total = total*31 + v
			return v&15 != 3
		})
		w.put(total)
		w.put(collatz(x & 0xffff))
		hi, lo := split(q)
		w.put(hi<<8 | uint64(lo))
		switch k := x % 7; {
		case k == 2:
			w.put(y)
		case k > 4 && y&1 == 0:
			w.put(k)
			fallthrough
		case p.d:
			w.put(k + 1)
		default:
			w.put(99)
		}
		var z *pair
		w.flag(z == nil && n.next != z)
		z = n.next
		z.a = 3
		w.put(uint64(p.a) + uint64(gpu.PtrTo(&p).Load().a))
	}
}

func table(x uint64) [4]uint64 { return [4]uint64{x, x + 1, 5, x * x} }

func sum[T uint32 | uint64](s []T) (v T) {
	for _, e := range s {
		v += e
	}
	return v
}

func each(s []uint64, f func(uint64) bool) {
	for _, v := range s {
		if !f(v) {
			return
		}
	}
}

func collatz(n uint64) (steps uint64) {
outer:
	for n > 1 {
		steps++
		for n&1 == 0 {
			if n >>= 1; n == 1 {
				break outer
			}
			steps++
			if steps > 500 {
				continue outer
			}
		}
		n = 3*n + 1
	}
	return steps
}

func split(p pair) (uint64, uint8) { return p.b, p.a }

// A row of the table that Tables looks things up in.
type row struct {
	small int8
	wide  [3]uint64
	f     float32
	flag  bool
}

var (
	rows = [5]row{
		{-1, [3]uint64{1, 1 << 63, 3}, 0.5, true}, {small: -128, f: -2.25}, {wide: [3]uint64{2: 1<<64 - 1}}, {127, [3]uint64{7, 8, 9}, 1e-30, true},
	}
	powers = [...]float64{1, 10, 100, 1e22, 0.1, -1}
	primes = [16]uint16{2, 3, 5, 7, 11, 13, 17, 19, 0xffff}
)

// Tables looks up what was given at compile time by numbers that were not.
//
//gpu:kernel
func Tables(t gpu.Thread, a Args) {
	for i := range a.Cases {
		in, w := a.at(i)
		for k := range 4 {
			v := in.At(k).Load()
			r := &rows[v%5]
			w.put(uint64(r.small))
			w.put(r.wide[v>>8%3])
			w.put(uint64(math.Float32bits(r.f)))
			w.flag(r.flag)
			w.put(math.Float64bits(powers[v>>16%6]))
			w.put(uint64(primes[v>>24%16]))
		}
		sum := uint16(0)
		for _, p := range primes {
			sum = sum*3 + p
		}
		w.put(uint64(sum))
	}
}
