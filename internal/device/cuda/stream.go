// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

const (
	streamNonBlocking = 1 // CU_STREAM_NON_BLOCKING: the NULL stream, which nobody here uses, waits for it and it for none
	waitGreaterEqual  = 0 // CU_STREAM_WAIT_VALUE_GEQ, rolling
	writeOrdered      = 0 // CU_STREAM_WRITE_VALUE_DEFAULT: what was queued before is visible before
)

// tracked is how many items may be queued before their stream marks by itself how far it is, and how many names of kernels
// it knows.
const tracked = 64

// stream is a queue of items that the GPU does in order. After some of them it stores their count into a word of pinned
// memory: its mark, which the host reads without asking the driver, and which stays readable when a kernel ended the context.
type stream struct {
	dev   *Device
	card  *card
	lane  *lane
	word  atomic.Pointer[uint64] // the lane's mark; nil once the stream is closed, and all that asks for it
	asked atomic.Uint64          // items of which the driver said that they are done

	counted   bool // it is one of the rank's, and not the device's own
	recording bool // what is queued is recorded: it says nowhere how far it is

	mu     sync.Mutex // what follows; the driver is called with it held, in the order of the items
	queued uint64     // items ever queued
	marked uint64     // items up to the last mark that was queued
	names  [tracked]string
	param  *[1]uintptr // what cuLaunchKernel's kernelParams points at
	both   *batch
	copies *copyAttributes
	pieces [2]uint64 // items up to the last that emptied each piece of Through; its caller is alone
	turn   int       // which is next
	err    error     // sticks
	closed bool
}

func (d *Device) NewStream() device.Stream { return d.countedStream(0) }

// NewCopyStream is device.Device's: of the priority that goes first, so that it shares no hardware queue with kernels where
// priorities have queues of their own.
func (d *Device) NewCopyStream() device.Stream { return d.countedStream(d.card.urgent) }

func (d *Device) countedStream(priority int32) *stream {
	d.streams.Add(1)
	s := d.newStream(priority)
	s.counted = true
	return s
}

// newStream makes a stream. One that cannot be made says so at its first use. The driver waits for no kernel here.
func (d *Device) newStream(priority int32) *stream {
	c := d.card
	s := &stream{dev: d, card: c, param: new([1]uintptr), both: new(batch), copies: new(copyAttributes)}
	if s.err = c.failure(); s.err != nil {
		return s
	}
	if s.lane, s.err = c.takeLane(priority); s.err != nil {
		return s
	}
	s.queued = atomic.LoadUint64(s.lane.done)
	s.marked = s.queued
	s.word.Store(s.lane.done)
	c.mu.Lock()
	c.streams[s] = struct{}{}
	c.mu.Unlock()
	return s
}

// known is how many items are known to be done.
func (s *stream) known() uint64 {
	n := s.asked.Load()
	if w := s.word.Load(); w != nil {
		n = max(n, atomic.LoadUint64(w))
	}
	return n
}

func (s *stream) reached(n uint64) bool { return s.known() >= n }

// failure is why nothing more comes of the stream.
func (s *stream) failure() error {
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if err == nil {
		err = s.card.failure()
	}
	return err
}

// idle says whether all that was queued is done, or never will be. It asks the driver where no mark says it.
func (s *stream) idle() bool {
	s.mu.Lock()
	queued := s.queued
	if s.reached(queued) || s.closed {
		s.mu.Unlock()
		return true
	}
	r := s.card.do(cuStreamQuery, s.lane.handle)
	if r == success {
		s.asked.Store(queued)
	}
	s.mu.Unlock()
	if r == errNotReady {
		return false
	}
	if r != success {
		s.fail(s.card.fault(cuStreamQuery, r, ""))
	}
	return true
}

// pending appends the names of the kernels that are not known to be done.
func (s *stream) pending(names []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := max(s.known(), s.queued-min(s.queued, tracked)); i < s.queued; i++ {
		if n := s.names[i%tracked]; n != "" {
			names = append(names, n)
		}
	}
	return names
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

// enter takes the gate and the stream for one item. leave gives them back.
func (s *stream) enter() error {
	s.card.gate.RLock()
	s.mu.Lock()
	err := s.err
	if err == nil {
		err = s.card.failure()
	}
	if err == nil && s.closed {
		err = device.ErrStreamClosed
	}
	if err != nil {
		s.mu.Unlock()
		s.card.gate.RUnlock()
	}
	return err
}

// leave counts an item that the driver took. A result that is an error is one, and the item is not counted; if it ends the
// context, the kernel of this item is among those that may have done so.
func (s *stream) leave(f function, r result, name, detail string) error {
	if r == success {
		s.names[s.queued%tracked] = name
		s.queued++
		if s.queued-s.marked >= tracked && !s.recording {
			r, f = s.mark(), cuStreamWriteValue64
		}
	}
	s.mu.Unlock()
	s.card.gate.RUnlock()
	if r == success {
		return nil
	}
	return s.card.fault(f, r, "%s", detail)
}

// mark queues a store of how far the stream is. mu is held.
func (s *stream) mark() result {
	if s.marked == s.queued {
		return success
	}
	r := s.card.do(cuStreamWriteValue64, s.lane.handle, s.lane.at, uintptr(s.queued), writeOrdered)
	if r == success {
		s.marked = s.queued
	}
	return r
}

// begin queues a store that says that the GPU has come to the next item, where that was asked for. mu is held.
func (s *stream) begin() result {
	if !s.dev.opt.Starts || s.recording {
		return success
	}
	return s.card.do(cuStreamWriteValue64, s.lane.handle, s.lane.at+begunAt, uintptr(s.queued+1), writeOrdered)
}

func (s *stream) Record() device.Event { return &event{s, s.point()} }

// point is how many items are queued, and has the stream say when they are done.
func (s *stream) point() uint64 {
	if s.enter() != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.queued
	}
	n, r := s.queued, success
	if !s.reached(n) && !s.recording {
		r = s.mark()
	}
	s.mu.Unlock()
	s.card.gate.RUnlock()
	if r != success {
		s.fail(s.card.fault(cuStreamWriteValue64, r, ""))
	}
	return n
}

func (s *stream) WaitEvent(e device.Event) {
	ev, ok := e.(*event)
	if !ok || ev.s.card != s.card {
		s.fail(fmt.Errorf("wait for event: it is of another device"))
		return
	}
	s.await(ev.s, ev.n)
}

// await makes later items wait for a point of another stream of the card.
func (s *stream) await(of *stream, n uint64) {
	if of == s || of.reached(n) {
		return
	}
	if s.enter() != nil {
		return // a stream that failed or closed says so at its next launch
	}
	// The mark that it waits for was queued by point, so before this: in a hardware queue that both streams use, it goes first.
	r := s.card.do(cuStreamWaitValue64, s.lane.handle, of.lane.at, uintptr(n), waitGreaterEqual)
	if err := s.leave(cuStreamWaitValue64, r, "", ""); err != nil {
		s.fail(err)
	}
}

func (s *stream) Copy(dst, src gpu.Ptr[byte], bytes int) error {
	if bytes < 0 {
		return fmt.Errorf("copy: %d bytes asked for, 0 or more are accepted", bytes)
	}
	err := s.enter()
	if err != nil || bytes == 0 {
		return s.nothing(err)
	}
	r := s.card.do(cuMemcpyAsync, uintptr(dst.Addr()), uintptr(src.Addr()), uintptr(bytes), s.lane.handle)
	return s.leave(cuMemcpyAsync, r, "", "")
}

func (s *stream) Fill(dst gpu.Ptr[byte], value byte, bytes int) error {
	if bytes < 0 {
		return fmt.Errorf("fill: %d bytes asked for, 0 or more are accepted", bytes)
	}
	err := s.enter()
	if err != nil || bytes == 0 {
		return s.nothing(err)
	}
	r := s.card.do(cuMemsetD8Async, uintptr(dst.Addr()), uintptr(value), uintptr(bytes), s.lane.handle)
	return s.leave(cuMemsetD8Async, r, "", "")
}

func (s *stream) Store(at gpu.Ptr[uint64], value uint64) error {
	if at.Addr()%8 != 0 {
		return fmt.Errorf("store: address %#x asked for, multiples of 8 are accepted", at.Addr())
	}
	if err := s.enter(); err != nil {
		return err
	}
	r := s.card.do(cuStreamWriteValue64, s.lane.handle, uintptr(at.Addr()), uintptr(value), writeOrdered)
	return s.leave(cuStreamWriteValue64, r, "", "")
}

// batch is the parameters of two cuStreamWriteValue64 in one call: CUstreamBatchMemOpParams is a union of 48 bytes, of which
// operation is at 0, address at 8, value64 at 16 and flags at 24 (cuda.h). The first store could do without a barrier, but
// the driver refuses that flag here (580, H200).
type batch [2][6]uint64

const memOpWriteValue64 = 5 // CU_STREAM_MEM_OP_WRITE_VALUE_64

func (s *stream) StoreBoth(first gpu.Ptr[uint64], value uint64, second gpu.Ptr[uint64], then uint64) error {
	if (first.Addr()|second.Addr())%8 != 0 {
		return fmt.Errorf("store: addresses %#x and %#x asked for, multiples of 8 are accepted", first.Addr(), second.Addr())
	}
	if err := s.enter(); err != nil {
		return err
	}
	s.both[0] = [6]uint64{memOpWriteValue64, first.Addr(), value, writeOrdered}
	s.both[1] = [6]uint64{memOpWriteValue64, second.Addr(), then, writeOrdered}
	r := s.card.do(cuStreamBatchMemOp, s.lane.handle, uintptr(len(s.both)), ffi.Addr(&s.both[0][0]), 0)
	return s.leave(cuStreamBatchMemOp, r, "", "")
}

// nothing ends an item that moves no bytes, which the driver may refuse.
func (s *stream) nothing(err error) error {
	if err == nil {
		s.mu.Unlock()
		s.card.gate.RUnlock()
	}
	return err
}

func (s *stream) Wait(ctx context.Context) error { return s.Record().Wait(ctx) }

// Close waits for what runs, but no longer than the device's timeout: then the stream stays as it is, and Close may be
// called again.
func (s *stream) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.dev.opt.Timeout)
	defer cancel()
	e := s.Record()
	if err := e.Wait(ctx); !e.Done() {
		return fmt.Errorf("close stream: %w", err)
	}
	c, idle := s.card, s.idle()
	s.mu.Lock()
	closed, s.closed = s.closed, true // who still asks how far the stream is does not ask the driver
	s.mu.Unlock()
	if closed {
		return nil
	}
	if s.counted {
		s.dev.streams.Add(-1)
	}
	s.asked.Store(e.(*event).n)
	s.word.Store(nil)
	c.mu.Lock()
	delete(c.streams, s)
	c.mu.Unlock()
	if s.lane != nil && idle { // else it failed with items on their way, which may still store how far they are
		c.giveLane(s.lane)
	}
	return nil
}
