// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

// item is what a stream does: run a grid, move data, or wait for a point of a stream.
type item struct {
	call  gpu.Call
	grid  device.Grid
	move  func()
	event *event
	graph *graph
}

// stream is a queue of items with one goroutine that does them in order.
type stream struct {
	dev  *Device
	l    launch
	tape *graph // not nil: what is queued is recorded there

	mu      sync.Mutex
	cond    *sync.Cond // something was queued, done, or closed
	items   []item     // ring
	queued  uint64     // items ever queued
	done    uint64     // items ever done
	err     error      // first failure; sticks
	closing bool
	ended   chan struct{}
}

// event is a point in a stream: all items below n are done.
type event struct {
	s *stream
	n uint64
}

func (d *Device) NewStream() device.Stream {
	s := &stream{dev: d, items: make([]item, 16), ended: make(chan struct{})}
	s.cond = sync.NewCond(&s.mu)
	s.l.dev, s.l.done = d, make(chan struct{}, 1)
	d.mu.Lock()
	d.streams++
	d.mu.Unlock()
	go s.serve()
	return s
}

// NewCopyStream is a stream like any: all run beside each other.
func (d *Device) NewCopyStream() device.Stream { return d.NewStream() }

func (s *stream) Launch(c gpu.Call, g device.Grid) error {
	err := g.Validate(s.dev.opt.MaxWarps)
	if err == nil {
		err = s.push(item{call: c, grid: g})
	}
	if err != nil {
		c.Release()
	}
	return err
}

func (s *stream) Copy(dst, src gpu.Ptr[byte], bytes int) error {
	if bytes < 0 {
		return fmt.Errorf("copy: %d bytes asked for, 0 or more are accepted", bytes)
	}
	return s.push(item{move: func() { copy(gpu.Slice(dst, bytes), gpu.Slice(src, bytes)) }})
}

func (s *stream) Copies(dst, src []gpu.Ptr[byte], bytes []uint64) error {
	if err := device.ValidCopies(dst, src, bytes); err != nil {
		return err
	}
	for i := range dst {
		if err := s.Copy(dst[i], src[i], int(bytes[i])); err != nil {
			return err
		}
	}
	return nil
}

// Through is a copy: the pieces in between would hold nothing that anybody may look at.
func (s *stream) Through(dst, src gpu.Ptr[byte], bytes int, _ gpu.Ptr[byte], piece int, _ bool) error {
	if err := device.ValidThrough(bytes, piece); err != nil {
		return err
	}
	return s.Copy(dst, src, bytes)
}

func (s *stream) Fill(dst gpu.Ptr[byte], value byte, bytes int) error {
	if bytes < 0 {
		return fmt.Errorf("fill: %d bytes asked for, 0 or more are accepted", bytes)
	}
	return s.push(item{move: func() {
		for i := range gpu.Slice(dst, bytes) {
			gpu.Slice(dst, bytes)[i] = value
		}
	}})
}

func (s *stream) Store(at gpu.Ptr[uint64], value uint64) error {
	if at.Addr()%8 != 0 {
		return fmt.Errorf("store: address %#x asked for, multiples of 8 are accepted", at.Addr())
	}
	return s.push(item{move: func() { gpu.Store(at, value, gpu.Release, gpu.ScopeSys) }})
}

func (s *stream) StoreBoth(first gpu.Ptr[uint64], value uint64, second gpu.Ptr[uint64], then uint64) error {
	if (first.Addr()|second.Addr())%8 != 0 {
		return fmt.Errorf("store: addresses %#x and %#x asked for, multiples of 8 are accepted", first.Addr(), second.Addr())
	}
	return s.push(item{move: func() {
		gpu.Store(first, value, gpu.Release, gpu.ScopeSys)
		gpu.Store(second, then, gpu.Release, gpu.ScopeSys)
	}})
}

func (s *stream) push(it item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.closing {
		return device.ErrStreamClosed
	}
	if s.tape != nil {
		s.tape.add(it)
		return nil
	}
	if n := uint64(len(s.items)); s.queued-s.done == n {
		grown := make([]item, 2*n)
		for i := s.done; i < s.queued; i++ {
			grown[i%(2*n)] = s.items[i%n]
		}
		s.items = grown
	}
	s.items[s.queued%uint64(len(s.items))] = it
	s.queued++
	s.cond.Broadcast()
	return nil
}

func (s *stream) serve() {
	running := false
	defer func() {
		if !running {
			s.mu.Unlock()
			close(s.ended)
			return
		}
		// A kernel of one warp runs here, and this one took this goroutine with it, by runtime.Goexit.
		err := s.l.end()
		s.mu.Lock()
		s.finish(err)
		s.mu.Unlock()
		go s.serve()
	}()
	s.mu.Lock()
	for {
		for s.done == s.queued && !s.closing {
			s.cond.Wait()
		}
		if s.done == s.queued {
			return
		}
		it := &s.items[s.done%uint64(len(s.items))]
		todo := *it
		*it = item{}
		skip := s.err != nil
		s.mu.Unlock()
		running = true
		err := s.do(&todo, skip)
		running = false
		s.mu.Lock()
		s.finish(err)
	}
}

// finish counts an item as done; s.mu is held.
func (s *stream) finish(err error) {
	if err != nil && s.err == nil {
		s.err = err
	}
	s.done++
	s.cond.Broadcast()
}

func (s *stream) do(it *item, skip bool) error {
	switch {
	case it.event != nil:
		return it.event.Wait(context.Background()) // bounded by the deadlines of what the other stream runs
	case it.graph != nil:
		defer it.graph.leave()
		if !skip {
			return it.graph.run(s)
		}
	case skip && it.call != nil:
		it.call.Release()
	case it.call != nil:
		s.l.call, s.l.grid = it.call, it.grid
		return s.l.run()
	case !skip:
		it.move()
	}
	return nil
}

func (s *stream) Record() device.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &event{s, s.queued}
}

func (s *stream) WaitEvent(e device.Event) {
	ev, ok := e.(*event)
	if !ok || ev.s.dev != s.dev {
		s.fail(fmt.Errorf("wait for event: it is of another device"))
		return
	}
	if ev.s != s {
		_ = s.push(item{event: ev}) // a stream that failed or closed says so at its next launch
	}
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *stream) Wait(ctx context.Context) error { return s.Record().Wait(ctx) }

func (e *event) Done() bool {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	return e.s.done >= e.n
}

func (e *event) Wait(ctx context.Context) error {
	// Short kernels end sooner than a sleeping goroutine wakes.
	for range 64 {
		if e.Done() {
			break
		}
		runtime.Gosched()
	}
	s := e.s
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		s.cond.Broadcast()
		s.mu.Unlock()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.done < e.n {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for stream: %d of %d launches done: %w", s.done, e.n, context.Cause(ctx))
		}
		s.cond.Wait()
	}
	return s.err
}

func (s *stream) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil
	}
	s.closing = true
	s.cond.Broadcast()
	s.mu.Unlock()
	<-s.ended // ends with what runs: each wait of a kernel has a deadline
	s.dev.mu.Lock()
	s.dev.streams--
	s.dev.mu.Unlock()
	return nil
}
