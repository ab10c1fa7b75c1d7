// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// TestGraphReplays: ranks that send to and fro replay one recording 100 times, each time with other input, and each replay
// waits for its own signals: what they have come to is kept by the device, and not by what was recorded.
func TestGraphReplays(t *testing.T) {
	each(t, local(t, 2, doorbell.Options{}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 2})
		send, recv, sums := r.window(8), r.window(8), r.alloc(8)
		turn := kernel("turn", func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 0), gin.World(&d)
			peer := 1 - world.Rank
			for id := range int32(2) { // the word, and then that it was read
				if id == 0 {
					ok(c.Put(co, world, peer, recv.Device(), 0, send.Device(), 0, 8, gin.StrongInc(0)), "put")
				} else {
					ok(c.Signal(co, world, peer, gin.StrongInc(1)), "signal")
				}
				ok(c.AddShadow(id, 1), "shadow")
				ok(c.WaitMeet(co, id, gin.FromPeer(world, peer)), "wait")
				if id == 0 {
					sum := gpu.Cast[uint64](sums.Ptr())
					sum.Store(sum.Load() + gpu.Cast[uint64](recv.Device().Base).Load())
				}
			}
			ok(c.Flush(co), "flush")
		})
		g, err := r.Graph(func(s *doorbell.Stream) error { return doorbell.Launch(s, turn, one, struct{}{}) })
		r.must(err)
		s, want := r.Stream(), uint64(0)
		for i := range uint64(100) {
			r.must(send.Buffer().Write(0, binary.LittleEndian.AppendUint64(nil, i*i+uint64(r.Rank()))))
			r.must(s.Replay(g))
			r.must(s.Wait(r.ctx))
			want += i*i + uint64(1-r.Rank())
		}
		var got [8]byte
		r.must(sums.Read(0, got[:]))
		if sum := binary.LittleEndian.Uint64(got[:]); sum != want {
			r.fail("replays received %d together, want %d", sum, want)
		}
		r.sync()
	})
}

// TestGraphRefuses what has no place in one, and graphs of others.
func TestGraphRefuses(t *testing.T) {
	cs := local(t, 2, doorbell.Options{})
	nothing := kernel("nothing", func(gpu.Thread) {})
	g, err := cs[0].Graph(func(s *doorbell.Stream) error { return doorbell.Launch(s, nothing, one, struct{}{}) })
	if err != nil {
		t.Fatal(err)
	}
	own := errors.New("its own")
	for words, f := range map[string]func(*doorbell.Stream) error{
		"its own":                      func(*doorbell.Stream) error { return own },
		"wait for an event in a graph": func(s *doorbell.Stream) error { s.WaitEvent(cs[0].Stream().Record()); return nil },
		"record an event in a graph":   func(s *doorbell.Stream) error { return s.Wait(t.Context()) },
		"replay a graph in a graph":    func(s *doorbell.Stream) error { return s.Replay(g) },
		"33 warps": func(s *doorbell.Stream) error {
			return doorbell.Launch(s, nothing, doorbell.Grid{Blocks: 1, Warps: 33}, struct{}{})
		},
	} {
		_, err := cs[0].Graph(f)
		says(t, err, "graph", "rank 0", words)
	}
	says(t, cs[1].Stream().Replay(g), "another's graph", "rank 1", "none of this communicator's")
	says(t, cs[1].Stream().Replay(nil), "no graph", "rank 1", "none of this communicator's")
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := cs[0].Stream().Replay(g); !errors.Is(err, doorbell.ErrClosed) {
		t.Errorf("a graph that is closed: %v", err)
	}
	cs[1].Revoke()
	_, err = cs[1].Graph(func(*doorbell.Stream) error { return nil })
	if !errors.Is(err, doorbell.ErrRevoked) {
		t.Errorf("after Revoke: %v", err)
	}
}

// TestGraphAtReplay: who asked for it is asked before each replay and told after it, and one that refuses keeps all others
// from being told.
func TestGraphAtReplay(t *testing.T) {
	c := local(t, 1, doorbell.Options{})[0]
	s, full := c.Stream(), errors.New("no more")
	if s.Graph() != nil {
		t.Error("a stream that queues has a graph")
	}
	var told, runs int
	var early error
	g, err := c.Graph(func(rec *doorbell.Stream) error {
		rec.Graph().AtReplay(func(*doorbell.Stream) error { return nil }, func(on *doorbell.Stream) {
			if told++; on != s {
				t.Error("told of another stream")
			}
		})
		rec.Graph().AtReplay(func(*doorbell.Stream) error {
			if told == 2 {
				return full
			}
			return nil
		}, func(*doorbell.Stream) {})
		rec.Graph().AtReplay(nil, nil)
		early = s.Replay(rec.Graph())
		if err := rec.Graph().Close(); !errors.Is(err, doorbell.ErrBusy) {
			t.Errorf("close while it is recorded: %v", err)
		}
		return doorbell.Launch(rec, kernel("run", func(gpu.Thread) { runs++ }), one, struct{}{})
	})
	if err != nil {
		t.Fatal(err)
	}
	says(t, early, "a replay while it is recorded", "rank 0", "not recorded")
	for range 2 {
		if err := s.Replay(g); err != nil {
			t.Error(err)
		}
	}
	if err := s.Replay(g); !errors.Is(err, full) {
		t.Errorf("a replay that is refused: %v", err)
	}
	if err := s.Wait(t.Context()); err != nil || told != 2 || runs != 2 {
		t.Errorf("%d runs, told of %d (want 2 of each): %v", runs, told, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	told = 0
	says(t, s.Replay(g), "a graph that is closed", "is closed")
	if told != 0 {
		t.Error("told of a replay that was not queued")
	}
}

// TestGraphAllocs: a replay allocates nothing.
func TestGraphAllocs(t *testing.T) {
	c := local(t, 1, doorbell.Options{})[0]
	g, err := c.Graph(func(s *doorbell.Stream) error {
		return doorbell.Launch(s, kernel("nothing", func(gpu.Thread) {}), one, struct{}{})
	})
	if err != nil {
		t.Fatal(err)
	}
	s := c.Stream()
	if n := testing.AllocsPerRun(100, func() { err = errors.Join(err, s.Replay(g)) }); n >= 1 || err != nil {
		t.Errorf("%v allocations a replay (%v)", n, err)
	}
	if err := s.Wait(t.Context()); err != nil {
		t.Error(fmt.Errorf("wait: %w", err))
	}
}

// TestGraphPeerGone: replays that wait for a rank that has left end with PeerLost, and the rank that queued them closes, with
// the graph or before it.
func TestGraphPeerGone(t *testing.T) {
	cs := local(t, 2, doorbell.Options{})
	each(t, cs, func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 1})
		r.sync()
		if r.Rank() == 1 {
			r.must(r.Close())
			return
		}
		g, err := r.Graph(func(s *doorbell.Stream) error {
			return doorbell.Launch(s, kernel("wait", func(t gpu.Thread) {
				d := dc.Device()
				c := gin.Open(&d, 0)
				expect(c.WaitSignal(gin.ByThread(t), 0, 1, 64, gin.FromPeer(gin.World(&d), 1)), gin.PeerLost, "wait for who left")
			}), one, struct{}{})
		})
		r.must(err)
		s := r.Stream()
		for range 3 {
			r.must(s.Replay(g))
		}
		r.must(g.Close())
		r.must(s.Wait(r.ctx))
		r.must(r.Close())
	})
}
