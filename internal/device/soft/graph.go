// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

// graph is items that a stream does one after another.
type graph struct {
	dev   *Device
	items []item
	users atomic.Int64 // queued replays, and its owner
	once  sync.Once
	mu    sync.Mutex // a graph does not run beside itself
}

// lasting is a call that is run again and again: its graph releases it.
type lasting struct{ gpu.Call }

func (lasting) Release() {}

// Capture is device.Device's.
func (d *Device) Capture(f func(device.Stream) error) (device.Graph, error) {
	g := &graph{dev: d}
	g.users.Store(1)
	s := &stream{dev: d, tape: g}
	r := &device.Recorder{Stream: s}
	err := f(r)
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	if err := cmp.Or(err, r.Err()); err != nil {
		g.leave()
		return nil, fmt.Errorf("capture: %w", err)
	}
	return g, nil
}

// add takes an item over.
func (g *graph) add(it item) {
	if it.call != nil {
		it.call = lasting{it.call}
	}
	g.items = append(g.items, it)
}

// run does all items on a stream, up to one that fails.
func (g *graph) run(s *stream) error {
	g.mu.Lock()
	defer g.mu.Unlock() // also when a kernel takes the goroutine with it
	for i := range g.items {
		if err := s.do(&g.items[i], false); err != nil {
			return err
		}
	}
	return nil
}

// leave ends one use. The last one gives the calls back.
func (g *graph) leave() {
	if g.users.Add(-1) > 0 {
		return
	}
	for _, it := range g.items {
		if c, ok := it.call.(lasting); ok {
			c.Call.Release()
		}
	}
}

func (g *graph) Close() error {
	g.once.Do(g.leave)
	return nil
}

func (s *stream) Replay(g device.Graph) error {
	own, ok := g.(*graph)
	if !ok || own.dev != s.dev {
		return fmt.Errorf("replay: the graph is of another device")
	}
	for n := own.users.Load(); ; n = own.users.Load() {
		if n == 0 {
			return fmt.Errorf("replay: the graph is %w", device.ErrClosed)
		}
		if own.users.CompareAndSwap(n, n+1) {
			break
		}
	}
	err := s.push(item{graph: own})
	if err != nil {
		own.leave()
	}
	return err
}
