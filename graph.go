// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"errors"
	"fmt"
	"sync"

	"github.com/doorbell-net/doorbell/internal/device"
)

// Graph is launches that were recorded once, to be queued again by one call. The kernels get the arguments that were recorded;
// what those point at is read anew, so that each replay may have other input. A count that grows with each replay, as that of
// a signal, has to be kept in memory of the device: by gin's shadows, say, and never in the arguments.
type Graph struct {
	comm  *Comm
	dev   device.Graph // nil while it is recorded
	hooks []replayHook
	once  sync.Once
	err   error
}

type replayHook struct {
	may func(*Stream) error
	did func(*Stream)
}

// Graph records what f launches on the stream that it gets; nothing runs. That stream takes launches only, until f returns: its events and
// waits are refused, and then no graph is made. The error is f's, or wraps ErrBusy while kernels of this process run that a GPU
// would wait for. It is not collective, though ranks that record the same replay the same.
func (c *Comm) Graph(f func(*Stream) error) (*Graph, error) {
	if err := c.begin("graph"); err != nil {
		return nil, err
	}
	defer c.calls.Done()
	g := &Graph{comm: c}
	dev, err := c.dev.Capture(func(s device.Stream) error { return f(&Stream{comm: c, dev: s, graph: g}) })
	if err != nil {
		return nil, fmt.Errorf("rank %d: %w", c.rank, err)
	}
	g.dev = dev
	c.mu.Lock()
	c.graphs[g] = struct{}{}
	c.mu.Unlock()
	return g, nil
}

// Graph is the one that records what this stream is given, nil for a stream that queues it.
func (s *Stream) Graph() *Graph { return s.graph }

// AtReplay is for who keeps account on the host of what a graph's kernels do. While the graph is recorded, it leaves two
// functions: may is asked before each replay, with the stream that it is to be queued on, and an error of it refuses the
// replay, so that nothing is queued; did is told of each that was queued. nil is nobody.
func (g *Graph) AtReplay(may func(*Stream) error, did func(*Stream)) {
	g.hooks = append(g.hooks, replayHook{may, did})
}

// Replay queues all that a graph of this communicator recorded. A graph never runs beside itself: replays on several streams
// wait for one another. What the library keeps account of on the host (moe.Buffer) may refuse it.
func (s *Stream) Replay(g *Graph) error {
	if err := s.replay(g); err != nil {
		return fmt.Errorf("rank %d: %w", s.comm.rank, err)
	}
	return nil
}

func (s *Stream) replay(g *Graph) error {
	if g == nil || g.comm != s.comm {
		return ofKind(ErrInvalid, errors.New("replay: the graph is none of this communicator's"))
	}
	if g.dev == nil {
		return ofKind(ErrInvalid, errors.New("replay: the graph is not recorded"))
	}
	for _, h := range g.hooks {
		if h.may == nil {
			continue
		}
		if err := h.may(s); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
	}
	if err := s.dev.Replay(g.dev); err != nil {
		return err
	}
	for _, h := range g.hooks {
		if h.did != nil {
			h.did(s)
		}
	}
	s.launched()
	return nil
}

// Close ends the graph. Replays that are queued are done all the same. One that is being recorded is refused.
func (g *Graph) Close() error {
	if g.dev == nil {
		return ofKind(ErrBusy, fmt.Errorf("rank %d: close graph: it is being recorded", g.comm.rank))
	}
	g.once.Do(func() {
		g.err = g.dev.Close()
		g.comm.mu.Lock()
		delete(g.comm.graphs, g)
		g.comm.mu.Unlock()
	})
	return g.err
}
