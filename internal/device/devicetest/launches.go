// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

func checkShapes(b *bed) {
	s := b.stream()
	for _, g := range []device.Grid{
		one, {Blocks: 1, Warps: 2}, {Blocks: 2, Warps: 1}, {Blocks: 3, Warps: 32}, {Blocks: 7, Warps: 5},
		{Blocks: 1, Warps: 32}, {Blocks: 64, Warps: 3}, {Blocks: 1000, Warps: 1},
	} {
		for _, g.Cooperative = range []bool{false, true} {
			if g.Cooperative && g.Blocks > b.cooperative(CountKernel.Code(), g.Warps) {
				continue
			}
			n := g.Blocks * g.Warps
			runs, wrong := b.words(n), b.words(1)
			const launches = 3 // blocks and threads are used again
			for range launches {
				b.must(s.Launch(CountKernel.Bind(CountArgs{runs.Ptr, wrong.Ptr, int32(g.Blocks), int32(g.Warps)}), g))
			}
			b.must(b.wait(s))
			if w := wrong.get(0); w != 0 {
				b.Errorf("grid %+v: %d threads saw another shape or place", g, w)
			}
			for i, all := 0, b.bytes(runs.m); i < n; i++ {
				if r := binary.LittleEndian.Uint32(all[4*i:]); r != launches {
					b.Errorf("grid %+v: warp %d of block %d ran %d times in %d launches", g, i%g.Warps, i/g.Warps, r, launches)
				}
			}
		}
	}
}

func checkRefused(b *bed) {
	s := b.stream()
	cell, wrong := b.words(1), b.words(1)
	most := b.dev.MaxCooperativeWarps()
	if most < device.MaxWarpsPerBlock {
		b.Errorf("the largest cooperative grid has %d warps, less than a block of %d", most, device.MaxWarpsPerBlock)
	}
	for _, g := range []device.Grid{
		{}, {Blocks: 0, Warps: 1}, {Blocks: -1, Warps: 1}, {Blocks: 1, Warps: 0}, {Blocks: 1, Warps: -5}, {Blocks: 1, Warps: 33},
		{Blocks: 1 << 31, Warps: 1}, {Blocks: most + 1, Warps: 1, Cooperative: true}, {Blocks: most/32 + 1, Warps: 32, Cooperative: true},
	} {
		if err := s.Launch(StepKernel.Bind(StepArgs{cell.Ptr, wrong.Ptr, 99}), g); err == nil {
			b.Errorf("grid %+v was taken", g)
		}
	}
	if n, err := b.dev.CooperativeBlocks(StepKernel.Code(), 33); err == nil {
		b.Errorf("%d blocks of 33 warps are resident", n)
	}
	n := b.cooperative(StepKernel.Code(), 7)
	if err := s.Launch(StepKernel.Bind(StepArgs{cell.Ptr, wrong.Ptr, 99}), device.Grid{Blocks: n + 1, Warps: 7, Cooperative: true}); err == nil {
		b.Errorf("a cooperative grid of %d blocks was taken, %d are resident", n+1, n)
	}
	b.run(s, StepKernel.Bind(StepArgs{cell.Ptr, wrong.Ptr, 0}), one)
	if cell.get(0) != 1 || wrong.get(0) != 0 {
		b.Errorf("a refused launch ran: cell %d, wrong %d", cell.get(0), wrong.get(0))
	}
}

// cooperative is how many blocks of so many warps are resident, which the device must say within what it says of any kernel.
func (b *bed) cooperative(k *gpu.Code, warps int) int {
	b.Helper()
	n, err := b.dev.CooperativeBlocks(k, warps)
	b.must(err)
	if n < 1 || n*warps > b.dev.MaxCooperativeWarps() {
		b.Errorf("%d blocks of %d warps of kernel %s are resident, of any kernel %d warps at most", n, warps, k.Name, b.dev.MaxCooperativeWarps())
	}
	return n
}

func checkCooperative(b *bed) {
	s := b.stream()
	for _, g := range []device.Grid{{Blocks: 2, Warps: 1}, {Blocks: 16, Warps: 2}, {Blocks: 100, Warps: 1}} {
		g.Cooperative = true
		if g.Blocks > b.cooperative(MeetKernel.Code(), g.Warps) {
			continue
		}
		arrived, late := b.words(1), b.words(1)
		b.run(s, MeetKernel.Bind(MeetArgs{arrived.Ptr, late.Ptr, uint64(Bound)}), g)
		if arrived.get(0) != uint32(g.Blocks) || late.get(0) != 0 {
			b.Errorf("grid %+v: %d blocks came, %d waited in vain for the others", g, arrived.get(0), late.get(0))
		}
	}
}

// checkBeside runs two grids that wait for each other, on two streams, as two ranks on one device do.
func checkBeside(b *bed) {
	for _, g := range []device.Grid{{Blocks: 16, Warps: 8, Cooperative: true}, {Blocks: 1, Warps: 1}} {
		if g.Cooperative {
			g.Blocks = min(g.Blocks, b.cooperative(PairKernel.Code(), g.Warps)/2)
		}
		if g.Blocks == 0 {
			b.Skip("a device that holds one block cannot hold two grids")
		}
		first, second, late := b.words(1), b.words(1), b.words(1)
		s, other := b.stream(), b.stream()
		b.must(s.Launch(PairKernel.Bind(PairArgs{first.Ptr, second.Ptr, late.Ptr, uint64(Bound) / 4}), g))
		b.must(other.Launch(PairKernel.Bind(PairArgs{second.Ptr, first.Ptr, late.Ptr, uint64(Bound) / 4}), g))
		b.must(b.wait(s))
		b.must(b.wait(other))
		if n := late.get(0); n != 0 {
			b.Errorf("grid %+v twice: %d blocks did not see the other grid", g, n)
		}
	}
}

func checkBarrier(b *bed) {
	s := b.stream()
	for _, g := range []device.Grid{one, {Blocks: 4, Warps: 2}, {Blocks: 3, Warps: 7}, {Blocks: 2, Warps: 32}, {Blocks: 40, Warps: 4}} {
		wrong := b.words(1)
		for range 2 {
			b.run(s, RoundsKernel.Bind(RoundArgs{wrong.Ptr, 50}), g)
		}
		if n := wrong.get(0); n != 0 {
			b.Errorf("grid %+v: %d reads after a barrier saw another block's or round's word", g, n)
		}
	}
}

func checkOrder(b *bed) {
	s := b.stream()
	cell, wrong, runs := b.words(1), b.words(1), b.words(6)
	const n = 200 // more than a stream holds at first
	for i := range uint32(n) {
		if i%3 == 0 {
			b.must(s.Launch(CountKernel.Bind(CountArgs{runs.Ptr, wrong.Ptr, 3, 2}), device.Grid{Blocks: 3, Warps: 2}))
		}
		b.must(s.Launch(StepKernel.Bind(StepArgs{cell.Ptr, wrong.Ptr, i}), one))
	}
	b.must(b.wait(s))
	if cell.get(0) != n || wrong.get(0) != 0 {
		b.Errorf("%d launches ran out of order, the word is %d and should be %d", wrong.get(0), cell.get(0), n)
	}
}

// gated is a stream with a kernel in it that holds it until open is called.
func (b *bed) gated() (s device.Stream, open func()) {
	s = b.stream()
	gate, late := b.hostWord(), b.words(1)
	b.must(s.Launch(GateKernel.Bind(GateArgs{gate, late.Ptr, uint64(Bound)}), one))
	return s, func() {
		gpu.Store(gate, 1, gpu.Release, gpu.ScopeSys)
		b.must(b.wait(s))
		if late.get(0) != 0 {
			b.Errorf("a kernel waited %v for the host's word in vain", Bound)
		}
	}
}

func checkEvents(b *bed) {
	if e := b.stream().Record(); !e.Done() || e.Wait(b.Context()) != nil {
		b.Error("an event of an empty stream is not done")
	}
	s, open := b.gated()
	e := s.Record()
	if e.Done() {
		b.Error("an event is done before its kernel")
	}
	for what, wait := range map[string]func(context.Context) error{"event": e.Wait, "stream": s.Wait} {
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Millisecond)
		if err := wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("the wait for a held %s ended with %v, want its context's end", what, err)
		}
		cancel()
		ctx, stop := context.WithCancelCause(b.Context())
		cause := errors.New("a cause")
		stop(cause)
		if err := wait(ctx); !errors.Is(err, cause) {
			b.Errorf("the wait for a held %s ended with %v, want its context's cause", what, err)
		}
	}
	open()
	if !e.Done() || e.Wait(b.Context()) != nil {
		b.Error("an event is not done after its kernel")
	}
}

func checkStreams(b *bed) {
	cell, wrong := b.words(1), b.words(1)
	s, open := b.gated()
	b.must(s.Launch(StepKernel.Bind(StepArgs{cell.Ptr, wrong.Ptr, 0}), one))
	other, free := b.stream(), b.stream()
	other.WaitEvent(s.Record())
	b.must(other.Launch(StepKernel.Bind(StepArgs{cell.Ptr, wrong.Ptr, 1}), one))
	// Its own events and those that are done hold nothing; a stream that was not told to wait does not.
	free.WaitEvent(free.Record())
	mine := b.words(1)
	b.run(free, StepKernel.Bind(StepArgs{mine.Ptr, wrong.Ptr, 0}), one)
	if mine.get(0) != 1 {
		b.Error("a stream of its own did not run beside a held one")
	}
	if other.Record().Done() {
		b.Error("a stream did not wait for the other's event")
	}
	open()
	b.must(b.wait(other))
	if cell.get(0) != 2 || wrong.get(0) != 0 {
		b.Errorf("across streams: word %d, want 2; %d launches out of order", cell.get(0), wrong.get(0))
	}
	b.must(free.Close())
	b.must(free.Close())
	if free.Launch(StepKernel.Bind(StepArgs{mine.Ptr, wrong.Ptr, 1}), one) == nil {
		b.Error("a closed stream took a launch")
	}
}
