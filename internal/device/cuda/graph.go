// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/doorbell-net/doorbell/internal/device"
)

// captureRelaxed is CU_STREAM_CAPTURE_MODE_RELAXED: other threads may do what they like, and so may the one that ends the
// capture be another than began it, as goroutines are.
const captureRelaxed = 2

// graph is what the driver made of the items that a stream of its own recorded.
type graph struct {
	card   *card
	exec   uintptr
	names  string // of its kernels
	closed atomic.Bool
}

// Capture is device.Device's. What the driver makes of the recording is made when no kernel runs, like code that is loaded.
func (d *Device) Capture(f func(device.Stream) error) (device.Graph, error) {
	g, err := d.capture(f)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return g, nil
}

func (d *Device) capture(f func(device.Stream) error) (g *graph, err error) {
	c, out := d.card, new(outs)
	if err := c.failure(); err != nil {
		return nil, err
	}
	lane, err := c.takeLane(0)
	if err != nil {
		return nil, err
	}
	s := &stream{dev: d, card: c, lane: lane, param: new([1]uintptr), both: new(batch), recording: true}
	if r := c.do(cuStreamBeginCapture, s.lane.handle, captureRelaxed); r != success {
		c.giveLane(lane)
		return nil, c.fault(cuStreamBeginCapture, r, "")
	}
	rec := &device.Recorder{Stream: s}
	err = f(rec)
	s.mu.Lock()
	s.closed = true // its lane is another stream's soon
	s.mu.Unlock()
	r := c.do(cuStreamEndCapture, s.lane.handle, out.at(1))
	if r == success { // else nobody knows what the lane is in the middle of
		c.giveLane(lane) // nothing ran on it
		defer c.do(cuGraphDestroy, out.addr(1))
	}
	if err := cmp.Or(err, rec.Err()); err != nil {
		return nil, err
	}
	if r != success {
		return nil, c.fault(cuStreamEndCapture, r, "%d items recorded", s.queued)
	}
	if err := c.quiet("make a graph", d.opt.Patience, &waiter{progress: &d.progress}); err != nil {
		return nil, err
	}
	defer c.gate.Unlock()
	if r := c.do(cuGraphInstantiateWithFlags, out.at(2), out.addr(1), 0); r != success {
		return nil, c.fault(cuGraphInstantiateWithFlags, r, "%d items recorded", s.queued)
	}
	return &graph{card: c, exec: out.addr(2), names: s.recorded()}, nil
}

// recorded are the names of the kernels that a stream has recorded; of many, the last.
func (s *stream) recorded() string {
	names := slices.DeleteFunc(slices.Clone(s.names[:]), func(n string) bool { return n == "" })
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

func (s *stream) Replay(g device.Graph) error {
	own, ok := g.(*graph)
	if !ok || own.card != s.card {
		return fmt.Errorf("replay: the graph is of another device")
	}
	if own.closed.Load() {
		return fmt.Errorf("replay: the graph is %w", device.ErrClosed)
	}
	if err := s.enter(); err != nil {
		return err
	}
	if r := s.begin(); r != success {
		return s.leave(cuStreamWriteValue64, r, "", "before graph of "+own.names)
	}
	r := s.card.do(cuGraphLaunch, own.exec, s.lane.handle)
	return s.leave(cuGraphLaunch, r, own.names, "graph of "+own.names)
}

// Close gives the graph back when no kernel runs: a replay may be under way.
func (g *graph) Close() error {
	if g.closed.Swap(true) {
		return nil
	}
	if err := g.card.discard(byCall(cuGraphExecDestroy, g.exec)); err != nil {
		return fmt.Errorf("close graph: %w", err)
	}
	return nil
}
