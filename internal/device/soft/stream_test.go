// SPDX-License-Identifier: Apache-2.0

//go:build !lockstep

// Kernels here are written for warps of one lane.

package soft

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

var one = device.Grid{Blocks: 1, Warps: 1}

// TestStreamOrder queues more launches than a stream has places at first, of all shapes: they run one after another in
// order, and events come in order.
func TestStreamOrder(t *testing.T) {
	s := newStream(t, newDevice(t, Options{}))
	release := make(chan struct{})
	start(t, s, one, func(gpu.Thread) { <-release })
	n := 0
	var events []device.Event
	for i := range 200 {
		g := device.Grid{Blocks: 1 + i%3, Warps: 1 + i%2, Cooperative: i%4 == 0}
		start(t, s, g, func(th gpu.Thread) {
			th.SyncBlock()
			if th.Block() == 0 && th.Warp() == 0 {
				if n != i {
					panic(fmt.Sprintf("launch %d runs as number %d", i, n))
				}
				n++ // plain: the next one runs after this one has ended
			}
		})
		events = append(events, s.Record())
	}
	for _, e := range events {
		if e.Done() {
			t.Fatal("an event is done before what it follows has begun")
		}
	}
	close(release)
	for i, e := range events {
		if err := e.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !e.Done() {
			t.Fatalf("event %d was waited for and is not done", i)
		}
	}
	if n != 200 {
		t.Errorf("%d launches ran", n)
	}
	if e := s.Record(); !e.Done() {
		t.Error("an event of an idle stream is not done")
	}
}

// TestWaitEvent has streams wait for points of each other.
func TestWaitEvent(t *testing.T) {
	d := newDevice(t, Options{})
	a, b, c := newStream(t, d), newStream(t, d), newStream(t, d)
	value := 0 // plain: the events order it
	for i := range 50 {
		start(t, a, one, func(gpu.Thread) { value = 3 * i })
		b.WaitEvent(a.Record())
		start(t, b, one, func(gpu.Thread) { value++ })
		c.WaitEvent(b.Record())
		start(t, c, one, func(gpu.Thread) {
			if value != 3*i+1 {
				panic(fmt.Sprintf("round %d sees %d", i, value))
			}
			value++
		})
		a.WaitEvent(c.Record())
		a.WaitEvent(a.Record()) // its own: it is in order anyway
	}
	for _, s := range []device.Stream{a, b, c} {
		wait(t, s)
	}
	if value != 3*49+2 {
		t.Errorf("value is %d", value)
	}
}

// TestWaitEventFails: who waits for a stream that failed fails too; an event of another device is refused.
func TestWaitEventFails(t *testing.T) {
	d, other := newDevice(t, Options{}), newDevice(t, Options{})
	a, b, c, foreign := newStream(t, d), newStream(t, d), newStream(t, d), newStream(t, other)
	start(t, a, one, func(gpu.Thread) { panic("first") })
	b.WaitEvent(a.Record())
	ran := false
	_ = b.Launch(kernel("after", func(gpu.Thread) { ran = true }), one)
	var ke *device.KernelError
	if err := b.Wait(t.Context()); !errors.As(err, &ke) || ran {
		t.Errorf("a stream that waited for a failed one: %v, its kernel ran: %v", err, ran)
	}
	c.WaitEvent(foreign.Record())
	err := c.Launch(kernel("after", func(gpu.Thread) { t.Error("it ran") }), one)
	if err == nil || !strings.Contains(err.Error(), "another device") {
		t.Errorf("an event of another device: %v", err)
	}
}

// TestStreamClose: it waits for what is queued; afterwards launches are refused, and a second close does nothing.
func TestStreamClose(t *testing.T) {
	d := newDevice(t, Options{})
	s := d.NewStream()
	release := make(chan struct{})
	n := 0
	for range 20 {
		start(t, s, one, func(gpu.Thread) { <-release; n++ })
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case <-closed:
		t.Error("close did not wait")
	case <-time.After(5 * time.Millisecond):
	}
	close(release)
	if err := <-closed; err != nil || n != 20 {
		t.Errorf("closed after %d of 20 launches: %v", n, err)
	}
	err := s.Launch(kernel("late", func(gpu.Thread) { t.Error("it ran") }), one)
	if err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("launch on a closed stream: %v", err)
	}
	if err := errors.Join(s.Close(), s.Wait(t.Context())); err != nil {
		t.Errorf("closed twice, waited for: %v", err)
	}
}

// TestStreamWaitEnds: a wait ends by its context and says how far the stream is.
func TestStreamWaitEnds(t *testing.T) {
	s := newStream(t, newDevice(t, Options{}))
	release := make(chan struct{})
	start(t, s, one, func(gpu.Thread) {})
	start(t, s, one, func(gpu.Thread) { <-release })
	defer close(release)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		time.Sleep(3 * time.Millisecond) // sleep: lets the wait begin; it is right too when it has not
		cancel(cause)
	}()
	err := s.Wait(ctx)
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "of 2 launches") {
		t.Errorf("wait: %v", err)
	}
}

// TestBadShapes refuses grids; nothing runs and the arguments are given back.
func TestBadShapes(t *testing.T) {
	d := newDevice(t, Options{MaxWarps: 16})
	s := newStream(t, d)
	for _, g := range []device.Grid{
		{}, {Blocks: 1}, {Warps: 1}, {Blocks: -1, Warps: 1}, {Blocks: 1, Warps: 33}, {Blocks: 1 << 31, Warps: 1}, {Blocks: 1 << 40, Warps: 32},
		{Blocks: 17, Warps: 1, Cooperative: true}, {Blocks: 1, Warps: 17, Cooperative: true}, {Blocks: 1<<31 - 1, Warps: 32, Cooperative: true},
	} {
		call := &refused{}
		if err := s.Launch(call, g); err == nil || call.ran || !call.released {
			t.Errorf("%+v: error %v, ran %v, released %v", g, err, call.ran, call.released)
		}
	}
	start(t, s, device.Grid{Blocks: 16, Warps: 1, Cooperative: true}, func(gpu.Thread) {})
	wait(t, s)
	if d.MaxCooperativeWarps() != 16 {
		t.Errorf("largest cooperative grid is %d", d.MaxCooperativeWarps())
	}
}

type refused struct{ ran, released bool }

func (c *refused) Name() string    { return "refused" }
func (c *refused) Code() *gpu.Code { return nil }
func (c *refused) Args() []byte    { return nil }
func (c *refused) Run(gpu.Thread)  { c.ran = true }
func (c *refused) Release()        { c.released = true }

// TestDeviceClose: it is refused while memory or streams are there, ends its goroutines, and works again and again.
func TestDeviceClose(t *testing.T) {
	before := runtime.NumGoroutine()
	d := New(Options{})
	s := d.NewStream()
	start(t, s, device.Grid{Blocks: 10, Warps: 10, Cooperative: true}, func(gpu.Thread) {})
	wait(t, s)
	m, err := d.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	for _, free := range []func() error{s.Close, m.Free} {
		if err := d.Close(); err == nil || !strings.Contains(err.Error(), "still there") {
			t.Errorf("close with something left: %v", err)
		}
		if err := free(); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(m.Free(), d.Close(), d.Close()); err != nil {
		t.Errorf("close: %v", err)
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) { // sleep: nothing tells of a goroutine's end
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, before: %d", runtime.NumGoroutine(), before)
		}
	}
}
