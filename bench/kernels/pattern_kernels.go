// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Pattern is the 8 bytes at word number word of what rank source sends in iteration iter: a hash, so that a receiver
// computes what it must have got without a look at the sender's memory. (Finaliser of splitmix64.)
func Pattern(seed uint64, source int32, iter, word uint64) uint64 {
	x := seed + uint64(source)*0x9e3779b97f4a7c15 + iter*0xd1342543de82ef95 + word*0xa0761d6478bd642f
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Span is bytes of a window of what Source sends in iteration Iter. Words are counted from the start of the span;
// First is the number of its first word.
type Span struct {
	At     gpu.Ptr[byte]
	Bytes  uint64
	Seed   uint64
	Iter   uint64
	First  uint64
	Source int32
	_      int32
}

// fill writes a span, the grid's threads together.
func (s *Span) fill(t gpu.Thread) {
	words := s.Bytes / 8
	for i, all := among(t); i < words; i += all {
		gpu.Cast[uint64](s.At).At(int(i)).Store(Pattern(s.Seed, s.Source, s.Iter, s.First+i))
	}
	if i, _ := among(t); i == 0 && s.Bytes&7 != 0 {
		v := Pattern(s.Seed, s.Source, s.Iter, s.First+words)
		for i := range s.Bytes & 7 {
			s.At.Byte(words*8 + i).Store(byte(v >> (8 * i)))
		}
	}
}

// wrong counts the bytes of a span that differ from what they must be, this thread's share.
func (s *Span) wrong(t gpu.Thread) (n uint64) {
	words := s.Bytes / 8
	for i, all := among(t); i < words; i += all {
		n += differ(gpu.Cast[uint64](s.At).At(int(i)).Load(), Pattern(s.Seed, s.Source, s.Iter, s.First+i))
	}
	if i, _ := among(t); i == 0 && s.Bytes&7 != 0 {
		v := Pattern(s.Seed, s.Source, s.Iter, s.First+words)
		for i := range s.Bytes & 7 {
			if s.At.Byte(words*8+i).Load() != byte(v>>(8*i)) {
				n++
			}
		}
	}
	return n
}

// among is this thread's number in the grid, and how many threads that has.
func among(t gpu.Thread) (i, all uint64) {
	return uint64(t.Block())*uint64(t.Threads()) + uint64(t.Index()), uint64(t.Blocks()) * uint64(t.Threads())
}

func differ(a, b uint64) (n uint64) {
	for x := a ^ b; x != 0; x >>= 8 {
		if x&0xff != 0 {
			n++
		}
	}
	return n
}

// FillArgs of FillKernel.
type FillArgs struct{ Span Span }

// Fill writes what a rank sends.
//
//gpu:kernel
func Fill(t gpu.Thread, a FillArgs) { a.Span.fill(t) }

// CheckArgs of CheckKernel. Wrong of the result is raised by the number of wrong bytes.
type CheckArgs struct {
	Span   Span
	Result gpu.Ptr[Result]
}

// Check compares what a rank received.
//
//gpu:kernel
func Check(t gpu.Thread, a CheckArgs) {
	if n := a.Span.wrong(t); n > 0 {
		gpu.AtomicAdd(gpu.PtrTo(&a.Result.Raw().Wrong), n, gpu.Relaxed, gpu.ScopeGPU)
	}
}

// SignalsArgs of SignalsKernel.
type SignalsArgs struct {
	DC      gin.DevComm
	Context int32
	Signals int32
	Values  gpu.Ptr[uint64]
}

// Signals copies the values of a context's signals, for the host to compare.
//
//gpu:kernel
func Signals(t gpu.Thread, a SignalsArgs) {
	c := gin.Open(&a.DC, a.Context)
	for i := t.Index(); i < a.Signals; i += t.Threads() {
		a.Values.At(int(i)).Store(c.ReadSignal(i))
	}
}
