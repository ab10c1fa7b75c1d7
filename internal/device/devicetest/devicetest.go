// SPDX-License-Identifier: Apache-2.0

// Package devicetest is the conformance suite of compute devices: what package device promises, held against one.
//
//	func TestConformance(t *testing.T) {
//		devicetest.Run(t, func(testing.TB) device.Device { return soft.New(soft.Options{}) })
//	}
//
// It looks at memory through the host's view, which the device under test must give. Run it under -race too where
// kernels run on the CPU: a barrier or a launch that orders nothing is seen there and may not be elsewhere.
package devicetest

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

// Bound ends what a correct device never waits for.
const Bound = 20 * time.Second

// Run holds the device that open gives against each rule, as subtests. open is called for each of them; the suite
// closes the device.
func Run(t *testing.T, open func(t testing.TB) device.Device) {
	for _, c := range []struct {
		name string
		on   func(*bed)
	}{
		{"shapes", checkShapes},
		{"refused", checkRefused},
		{"cooperative", checkCooperative},
		{"barrier", checkBarrier},
		{"order", checkOrder},
		{"events", checkEvents},
		{"streams", checkStreams},
		{"failure", checkFailure},
		{"memory", checkMemory},
		{"import", checkImport},
		{"outofmemory", checkOutOfMemory},
		{"close", checkClose},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &bed{TB: t, dev: open(t)}
			t.Cleanup(b.end)
			c.on(b)
		})
	}
}

// bed is a device under test and what is to be given back.
type bed struct {
	testing.TB
	dev     device.Device
	memory  []device.Memory
	streams []device.Stream
	closed  bool
}

func (b *bed) end() {
	for _, s := range b.streams {
		b.must(s.Close())
	}
	for _, m := range b.memory {
		b.must(m.Free())
	}
	if !b.closed {
		b.must(b.dev.Close())
	}
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%+v", err)
	}
}

func (b *bed) alloc(n int) device.Memory {
	b.Helper()
	m, err := b.dev.Alloc(n)
	b.must(err)
	b.memory = append(b.memory, m)
	if m.Bytes() == nil {
		b.Fatalf("device %s gives the host no view of its memory, which this suite needs", b.dev.Name())
	}
	return m
}

// words is memory of n words.
func (b *bed) words(n int) gpu.Ptr[uint32] {
	b.Helper()
	return gpu.Cast[uint32](b.alloc(4 * n).Ptr())
}

// get reads a word that kernels may still write.
func get(p gpu.Ptr[uint32]) uint32 { return gpu.Load(p, gpu.Acquire, gpu.ScopeSys) }

func (b *bed) stream() device.Stream {
	s := b.dev.NewStream()
	b.streams = append(b.streams, s)
	return s
}

// wait waits for a stream, within the bound.
func (b *bed) wait(s device.Stream) error {
	ctx, cancel := context.WithTimeout(b.Context(), Bound)
	defer cancel()
	err := s.Wait(ctx)
	if ctx.Err() != nil {
		b.Helper()
		b.Fatalf("the stream did not end within %v: %v", Bound, err)
	}
	return err
}

// run launches and waits.
func (b *bed) run(s device.Stream, c gpu.Call, g device.Grid) {
	b.Helper()
	b.must(s.Launch(c, g))
	b.must(b.wait(s))
}

var one = device.Grid{Blocks: 1, Warps: 1}

func checkShapes(b *bed) {
	s := b.stream()
	for _, g := range []device.Grid{
		one, {Blocks: 1, Warps: 2}, {Blocks: 2, Warps: 1}, {Blocks: 3, Warps: 32}, {Blocks: 7, Warps: 5},
		{Blocks: 1, Warps: 32}, {Blocks: 64, Warps: 3}, {Blocks: 1000, Warps: 1},
	} {
		for _, g.Cooperative = range []bool{false, true} {
			if g.Cooperative && g.Blocks*g.Warps > b.dev.MaxCooperativeWarps() {
				continue
			}
			n := g.Blocks * g.Warps
			runs, wrong := b.words(n), b.words(1)
			const launches = 3 // blocks and threads are used again
			for range launches {
				b.must(s.Launch(CountKernel.Bind(CountArgs{runs, wrong, int32(g.Blocks), int32(g.Warps)}), g))
			}
			b.must(b.wait(s))
			if w := get(wrong); w != 0 {
				b.Errorf("grid %+v: %d threads saw another shape or place", g, w)
			}
			for i := range n {
				if r := get(runs.At(i)); r != launches {
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
		if err := s.Launch(StepKernel.Bind(StepArgs{cell, wrong, 99}), g); err == nil {
			b.Errorf("grid %+v was taken", g)
		}
	}
	b.run(s, StepKernel.Bind(StepArgs{cell, wrong, 0}), one)
	if get(cell) != 1 || get(wrong) != 0 {
		b.Errorf("a refused launch ran: cell %d, wrong %d", get(cell), get(wrong))
	}
}

func checkCooperative(b *bed) {
	s := b.stream()
	for _, g := range []device.Grid{{Blocks: 2, Warps: 1}, {Blocks: 16, Warps: 2}, {Blocks: 100, Warps: 1}} {
		g.Cooperative = true
		if g.Blocks*g.Warps > b.dev.MaxCooperativeWarps() {
			continue
		}
		arrived, late := b.words(1), b.words(1)
		b.run(s, MeetKernel.Bind(MeetArgs{arrived, late, uint64(Bound)}), g)
		if get(arrived) != uint32(g.Blocks) || get(late) != 0 {
			b.Errorf("grid %+v: %d blocks came, %d waited in vain for the others", g, get(arrived), get(late))
		}
	}
}

func checkBarrier(b *bed) {
	s := b.stream()
	for _, g := range []device.Grid{one, {Blocks: 4, Warps: 2}, {Blocks: 3, Warps: 7}, {Blocks: 2, Warps: 32}, {Blocks: 40, Warps: 4}} {
		wrong := b.words(1)
		for range 2 {
			b.run(s, RoundsKernel.Bind(RoundArgs{wrong, 50}), g)
		}
		if n := get(wrong); n != 0 {
			b.Errorf("grid %+v: %d reads after a barrier saw another block's or round's word", g, n)
		}
	}
}

func checkOrder(b *bed) {
	s := b.stream()
	cell, wrong := b.words(1), b.words(1)
	const n = 200 // more than a stream holds at first
	for i := range uint32(n) {
		if i%3 == 0 {
			b.must(s.Launch(CountKernel.Bind(CountArgs{b.words(6), wrong, 3, 2}), device.Grid{Blocks: 3, Warps: 2}))
		}
		b.must(s.Launch(StepKernel.Bind(StepArgs{cell, wrong, i}), one))
	}
	b.must(b.wait(s))
	if get(cell) != n || get(wrong) != 0 {
		b.Errorf("%d launches ran out of order, the word is %d and should be %d", get(wrong), get(cell), n)
	}
}

// gated is a stream with a kernel in it that holds it until open is called.
func (b *bed) gated() (s device.Stream, open func()) {
	s = b.stream()
	gate, late := b.words(1), b.words(1)
	b.must(s.Launch(GateKernel.Bind(GateArgs{gate, late, uint64(Bound)}), one))
	return s, func() {
		gpu.Store(gate, 1, gpu.Release, gpu.ScopeSys)
		b.must(b.wait(s))
		if get(late) != 0 {
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
	b.must(s.Launch(StepKernel.Bind(StepArgs{cell, wrong, 0}), one))
	other, free := b.stream(), b.stream()
	other.WaitEvent(s.Record())
	b.must(other.Launch(StepKernel.Bind(StepArgs{cell, wrong, 1}), one))
	// Its own events and those that are done hold nothing; a stream that was not told to wait does not.
	free.WaitEvent(free.Record())
	mine := b.words(1)
	b.run(free, StepKernel.Bind(StepArgs{mine, wrong, 0}), one)
	if get(mine) != 1 {
		b.Error("a stream of its own did not run beside a held one")
	}
	if other.Record().Done() {
		b.Error("a stream did not wait for the other's event")
	}
	open()
	b.must(b.wait(other))
	if get(cell) != 2 || get(wrong) != 0 {
		b.Errorf("across streams: word %d, want 2; %d launches out of order", get(cell), get(wrong))
	}
	b.must(free.Close())
	b.must(free.Close())
	if free.Launch(StepKernel.Bind(StepArgs{mine, wrong, 1}), one) == nil {
		b.Error("a closed stream took a launch")
	}
}

func checkFailure(b *bed) {
	for _, c := range []struct {
		grid        device.Grid
		block, warp int32
	}{
		{one, 0, 0}, {device.Grid{Blocks: 1, Warps: 4}, 0, 2}, {device.Grid{Blocks: 5, Warps: 3}, 3, 0},
		{device.Grid{Blocks: 50, Warps: 2}, 0, 1}, {device.Grid{Blocks: 4, Warps: 8, Cooperative: true}, 3, 7},
	} {
		s, passed := b.stream(), b.words(1)
		b.must(s.Launch(FailKernel.Bind(FailArgs{c.block, c.warp, passed}), c.grid))
		var failed *device.KernelError
		if err := b.wait(s); !errors.As(err, &failed) || failed.Kernel != "Fail" {
			b.Fatalf("grid %+v: a kernel that fails ended with %v, want a KernelError that names it", c.grid, err)
		}
		if get(passed) != 0 {
			b.Errorf("grid %+v: %d warps passed a barrier that one of their block never reached", c.grid, get(passed))
		}
		cell, wrong := b.words(1), b.words(1)
		if err := s.Launch(StepKernel.Bind(StepArgs{cell, wrong, 0}), one); !errors.As(err, &failed) {
			b.Errorf("a stream that failed took a launch: %v", err)
		}
		if err := b.wait(s); !errors.As(err, &failed) {
			b.Errorf("a stream that failed forgot it: %v", err)
		}
		if get(cell) != 0 {
			b.Error("a launch ran after the failure of its stream")
		}
		b.run(b.stream(), StepKernel.Bind(StepArgs{cell, wrong, 0}), one) // another stream is none the worse
		b.run(b.streams[len(b.streams)-1], RoundsKernel.Bind(RoundArgs{wrong, 5}), device.Grid{Blocks: 5, Warps: 8})
		if get(wrong) != 0 {
			b.Error("a later launch was harmed by the failed one")
		}
	}
}

func checkMemory(b *bed) {
	s := b.stream()
	for _, n := range []int{1, 7, 4095, 4096, 4097, 1<<20 + 3} {
		for range 2 { // what was freed comes back zeroed
			m, err := b.dev.Alloc(n)
			b.must(err)
			if len(m.Bytes()) != n || m.Handle().Bytes != n {
				b.Errorf("%d bytes asked for: the view has %d, the handle %d", n, len(m.Bytes()), m.Handle().Bytes)
			}
			if a := m.Ptr().Addr(); a%4096 != 0 || a == 0 {
				b.Errorf("memory of %d bytes is at %#x, not at a multiple of 4096", n, a)
			}
			if !bytes.Equal(m.Bytes(), make([]byte, n)) {
				b.Errorf("memory of %d bytes is not zeroed", n)
			}
			b.run(s, FillKernel.Bind(FillArgs{m.Ptr(), uint64(n), 0x5a}), device.Grid{Blocks: 2, Warps: 2})
			if !bytes.Equal(m.Bytes(), bytes.Repeat([]byte{0x5a}, n)) {
				b.Errorf("memory of %d bytes does not show what a kernel wrote", n)
			}
			b.must(m.Free())
			b.must(m.Free())
		}
	}
	for _, n := range []int{0, -1, -1 << 62} {
		if m, err := b.dev.Alloc(n); err == nil {
			b.memory = append(b.memory, m)
			b.Errorf("%d bytes were allocated", n)
		}
	}
}

func checkImport(b *bed) {
	m := b.alloc(10000)
	m.Bytes()[9999] = 1
	p, err := b.dev.Import(m.Handle())
	b.must(err)
	b.memory = append(b.memory, p)
	if p.Bytes()[9999] != 1 || len(p.Bytes()) != 10000 {
		b.Error("imported memory is not the memory")
	}
	b.run(b.stream(), FillKernel.Bind(FillArgs{p.Ptr(), 10000, 7}), one)
	if !bytes.Equal(m.Bytes(), bytes.Repeat([]byte{7}, 10000)) {
		b.Error("what a kernel writes to imported memory is not seen by its owner")
	}
	if _, err := b.dev.Import(device.Handle{FD: -1, Bytes: 100}); err == nil {
		b.Error("a handle of nothing was imported")
	}
	b.must(p.Free())
	b.must(p.Free())
	if m.Bytes()[0] != 7 {
		b.Error("the owner's memory ended with an import of it")
	}
}

func checkOutOfMemory(b *bed) {
	for _, n := range []int{1 << 50, 1<<63 - 1} {
		m, err := b.dev.Alloc(n)
		if err == nil {
			b.memory = append(b.memory, m)
		}
		if !errors.Is(err, device.ErrOutOfMemory) {
			b.Errorf("%d bytes asked for: %v, want ErrOutOfMemory", n, err)
		}
	}
}

func checkClose(b *bed) {
	m := b.alloc(1)
	if b.dev.Close() == nil {
		b.Error("the device closed under its memory")
	}
	s := b.stream()
	b.must(m.Free())
	if b.dev.Close() == nil {
		b.Error("the device closed under a stream")
	}
	cell, wrong := b.words(1), b.words(1)
	b.run(s, StepKernel.Bind(StepArgs{cell, wrong, 0}), one) // a refused close closed nothing
	if get(cell) != 1 {
		b.Error("the device does not work after a refused close")
	}
	b.must(s.Close())
	for _, m := range b.memory {
		b.must(m.Free())
	}
	b.must(b.dev.Close())
	b.closed = true
}
