// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync"
)

// Local makes the n groups of a job whose ranks all live in this process. Each group is to be closed, in any order; see
// Kill for a rank that dies. Timeout of calls without deadline: DefaultTimeout.
func Local(n int) ([]Group, error) {
	if n < 1 || n > MaxRanks {
		return nil, fmt.Errorf("bootstrap: make %d local ranks: accepted is 1 to %d", n, MaxRanks)
	}
	shared := &localEpochs{lost: newRankSet(n), left: newRankSet(n), asked: newRankSet(n)}
	all := make([]*group, n)
	out := make([]Group, n)
	for r := range all {
		g := newGroup(r, n, DefaultTimeout, slog.Default())
		for i := range g.peers {
			g.peers[i].linked, g.peers[i].bootID, g.peers[i].unix = true, "this process", true
		}
		g.tr = &localNet{self: r, all: all, shared: shared}
		all[r], out[r] = g, g
	}
	return out, nil
}

// localNet hands contributions over by calling the other groups. Receivers get their own bytes and descriptors, so that
// a program which keeps or changes them behaves as it would between processes.
type localNet struct {
	self   int
	all    []*group
	shared *localEpochs
}

// localEpochs is all that agreement takes in one process: who is lost is decided by whoever sees it, one at a time.
type localEpochs struct {
	mu     sync.Mutex
	epoch  uint32
	agreed uint32
	lost   rankSet
	left   rankSet
	asked  rankSet
}

// lose takes a rank out of the group, which to itself is cut off if it goes on.
func (t *localNet) lose(rank int, cause error) {
	s := t.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost.has(rank) {
		return
	}
	s.lost.add(rank)
	s.epoch++
	for r, g := range t.all {
		if r != rank && !s.lost.has(r) {
			g.decide(decision{epoch: s.epoch, lost: []int{rank}}, []error{cause})
		}
	}
	t.all[rank].cutOff(fmt.Errorf("%w: %w", ErrCutOff, cause))
	t.settle()
}

func (t *localNet) ask(n uint32) []int {
	s := t.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if n == s.agreed+1 && !s.lost.has(t.self) {
		s.asked.add(t.self)
		t.settle()
	}
	return t.living().less(s.asked).list()
}

func (t *localNet) expel(rank int, cause error) { t.lose(rank, cause) }

func (t *localNet) living() rankSet {
	return fullRankSet(len(t.all)).less(t.shared.lost).less(t.shared.left)
}

// settle agrees on who is left, if all of them have asked.
func (t *localNet) settle() {
	s, living := t.shared, t.living()
	if living.empty() || !living.within(s.asked) {
		return
	}
	s.epoch++
	s.agreed++
	s.asked = newRankSet(len(t.all))
	for _, r := range living.list() {
		t.all[r].decide(decision{epoch: s.epoch, agreed: living.list()}, nil)
	}
}

func (t *localNet) contribute(seq uint64, name string, mine Blob, fail string) error {
	sets, err := t.dup(mine.FDs)
	if err != nil {
		fail = clip(err.Error())
	}
	for r, g := range t.all {
		if r == t.self {
			continue
		}
		c := contribution{seq: seq, name: name}
		if fail != "" {
			c.err = &RemoteError{Rank: t.self, Text: fail}
		} else {
			c.blob = Blob{Bytes: bytes.Clone(mine.Bytes), FDs: sets[r], Local: mine.Local}
		}
		if err := g.deliver(t.self, c); err != nil {
			t.lose(t.self, err)
		}
	}
	return err
}

// dup makes one set per other rank, all or none.
func (t *localNet) dup(fds []int) ([][]int, error) {
	sets := make([][]int, len(t.all))
	if len(fds) == 0 {
		return sets, nil
	}
	for r := range sets {
		if r == t.self {
			continue
		}
		s, err := dupAll(fds)
		if err != nil {
			for _, s := range sets {
				closeAll(s)
			}
			return nil, err
		}
		sets[r] = s
	}
	return sets, nil
}

func (t *localNet) end(goodbye bool, reason string) {
	if !goodbye {
		t.lose(t.self, ErrKilled)
		return
	}
	t.shared.mu.Lock()
	defer t.shared.mu.Unlock()
	for r, g := range t.all {
		if r != t.self {
			g.setDeparted(t.self, reason)
		}
	}
	t.shared.left.add(t.self)
	t.settle()
}
