// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

// Grid is the shape of a launch, in warps: Blocks blocks of Warps warps. A grid whose blocks wait for one another is
// Cooperative: it is refused when it cannot be resident as a whole.
type Grid = device.Grid

// Stream runs its launches one after another.
type Stream struct {
	comm  *Comm
	dev   device.Stream
	graph *Graph // that records
	once  sync.Once
	err   error
}

// Event is a point in a stream.
type Event struct {
	s   *Stream
	dev device.Event
}

// Stream makes a stream. One of a communicator that is closed refuses each launch.
func (c *Comm) Stream() *Stream {
	if !c.count() {
		return &Stream{comm: c, dev: device.Ended{}}
	}
	defer c.calls.Done()
	s := &Stream{comm: c, dev: c.dev.NewStream()}
	c.mu.Lock()
	c.streams[s] = struct{}{}
	c.mu.Unlock()
	return s
}

// Launch queues a kernel with its arguments and returns. A stream whose kernel failed returns that failure. It is a
// function since methods of Go have no type parameters: the arguments' type is checked when it is compiled.
func Launch[A any](s *Stream, k gpu.Kernel[A], g Grid, args A) error {
	if k.Code() == nil {
		return ofKind(ErrInvalid, fmt.Errorf("rank %d: launch: the zero Kernel: one that gpu.NewKernel made is accepted", s.comm.rank))
	}
	if err := s.dev.Launch(k.Bind(args), g); err != nil {
		return fmt.Errorf("rank %d: kernel %s: %w", s.comm.rank, k.Name(), err)
	}
	s.launched()
	return nil
}

// launched is called when kernels were queued.
func (s *Stream) launched() {
	if s.comm.dev.Powers().Lanes > 1 {
		s.comm.engine.Wake() // they wake nobody
	}
}

// Foreign says that kernels which the program launches by other means than Launch, CUDA's runtime say, may use this
// communicator's device communicators from now on, until the function that it returns is called, once they have ended:
// progress does not sleep meanwhile, and nothing is done on the device that would wait for them. Comm.Close and
// DevComm.Close do not wait for such kernels: they come after.
func (c *Comm) Foreign() (ended func()) {
	d, ok := c.dev.(interface{ Foreign(n int) })
	if !ok {
		return func() {} // kernels there wake who sleeps
	}
	d.Foreign(1)
	c.engine.Wake()
	return sync.OnceFunc(func() { d.Foreign(-1) })
}

// Record is an event that is done when all that was queued so far is.
func (s *Stream) Record() *Event { return &Event{s, s.dev.Record()} }

// WaitEvent makes later launches wait for an event of this communicator. One of another is a failure of the stream.
func (s *Stream) WaitEvent(e *Event) { s.dev.WaitEvent(e.dev) }

// Wait waits until all that was queued is done, moving data meanwhile where nobody else does. It returns the failure
// of a kernel. A put that the kernel did not flush may still read its source afterwards.
func (s *Stream) Wait(ctx context.Context) error { return s.Record().Wait(ctx) }

// Done says whether the event has come.
func (e *Event) Done() bool { return e.dev.Done() }

// Wait waits for the event. See Stream.Wait.
func (e *Event) Wait(ctx context.Context) error {
	c := e.s.comm
	// A few looks before it sleeps: a short kernel ends sooner than a sleeper wakes.
	for range 100 {
		if e.dev.Done() {
			break
		}
		if !c.engine.Assist(c.owner) {
			runtime.Gosched()
		}
	}
	err := e.dev.Wait(ctx)
	for range 1000 { // what the kernels left in their queues
		if !c.engine.Assist(c.owner) {
			break // nothing is left, or another moves it
		}
	}
	if err != nil {
		return fmt.Errorf("rank %d: %w", c.rank, err)
	}
	return nil
}

// idle waits until nothing runs, whether it failed or not.
func (s *Stream) idle(ctx context.Context) error {
	e := s.dev.Record()
	err := e.Wait(ctx)
	if e.Done() {
		return nil
	}
	return err
}

// Close waits for what runs, each wait of which has a deadline, and ends the stream.
func (s *Stream) Close() error {
	s.once.Do(func() {
		s.err = s.dev.Close()
		s.comm.mu.Lock()
		delete(s.comm.streams, s)
		s.comm.mu.Unlock()
	})
	return s.err
}
