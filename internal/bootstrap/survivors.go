// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"
	"slices"
)

// roundsPerAgreement separates the numbers of all-gathers: those after agreement n begin at n times this. Until then
// ranks may have got out of step, since one of them saw a loss sooner than another.
const roundsPerAgreement = 1 << 32

// survivorsName is that of Survivors among all-gathers.
const survivorsName = "survivors"

func (g *group) Survivors(ctx context.Context) ([]int, error) {
	ctx, cancel := bound(ctx, g.timeout)
	defer cancel()
	set, err := g.survive(ctx)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: rank %d: agree on the survivors: %w", g.rank, err)
	}
	return set, nil
}

func (g *group) survive(ctx context.Context) ([]int, error) {
	if err := g.takeTurn(ctx); err != nil {
		return nil, err
	}
	defer func() { <-g.turn }()
	n := g.call()
	var set []int
	err := g.await(ctx, survivorsName, func() (missing []int, err error) {
		missing = g.tr.ask(n)
		g.mu.Lock()
		defer g.mu.Unlock()
		switch {
		case g.closed:
			return nil, ErrClosed
		case g.cut != nil:
			return nil, g.cut
		case int(n) <= len(g.agreed):
			set = g.agreed[n-1]
			return nil, nil
		case len(missing) == 0: // all have asked: what is missing is the answer, of which this rank may be the last to hear
			missing = []int{g.rank}
		}
		return missing, nil
	})
	if err == nil {
		err = g.tell(ctx)
	}
	if err != nil {
		return nil, err
	}
	g.goOn(n, set)
	return slices.Clone(set), nil
}

func (g *group) Expel(rank int, cause error) error {
	if rank < 0 || rank >= g.size || rank == g.rank {
		return fmt.Errorf("bootstrap: rank %d: expel rank %d: accepted is another one of 0 to %d", g.rank, rank, g.size-1)
	}
	g.mu.Lock()
	closed, out := g.closed, g.peers[rank].gone()
	g.mu.Unlock()
	if closed {
		return fmt.Errorf("bootstrap: rank %d: expel rank %d: %w", g.rank, rank, ErrClosed)
	}
	if !out {
		g.tr.expel(rank, fmt.Errorf("%w by rank %d: %w", ErrExpelled, g.rank, cause))
	}
	return nil
}

// call begins agreement n, which it returns. Others that are in an all-gather, or come to one, are not to wait for this
// rank: the call takes a place in the sequence too, and there it is one of another name.
func (g *group) call() (n uint32) {
	g.mu.Lock()
	n = g.taken + 1
	again, seq := g.called == n, g.seq
	if !again {
		g.called = n
		g.seq++
	}
	g.mu.Unlock()
	if !again && g.futile(seq, survivorsName, Blob{}) == nil {
		g.tr.contribute(seq, survivorsName, Blob{}, "") // nothing that could fail
	}
	return n
}

// tell waits until all who registered have been told of what happened so far.
func (g *group) tell(ctx context.Context) error {
	told := make(chan struct{})
	g.mu.Lock()
	g.notes.add(&g.mu, func() { close(told) })
	g.mu.Unlock()
	select {
	case <-told:
		return nil
	case <-g.done:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("tell of the lost ranks: %w", context.Cause(ctx))
	}
}

// goOn has all-gathers be among the ranks of agreement n from here on.
func (g *group) goOn(n uint32, set []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken = n
	g.seq = uint64(n) * roundsPerAgreement
	g.floor = g.seq
	for r := range g.peers {
		g.peers[r].out = !slices.Contains(set, r)
		g.peers[r].discard(g.floor)
	}
}

// decide begins an epoch. causes are those of d.lost.
func (g *group) decide(d decision, causes []error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.epochs = append(g.epochs, d)
	if d.agreed != nil {
		g.agreed = append(g.agreed, d.agreed)
		g.poke()
	}
	g.notes.epoch(&g.mu, d)
	for i, r := range d.lost {
		g.markLost(r, causes[i])
	}
	for _, r := range d.left {
		g.markDeparted(r, "")
	}
}

// cutOff ends this rank's part: to it, all others are lost.
func (g *group) cutOff(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cut = cause
	g.poke()
	for r := range g.peers {
		if r != g.rank {
			g.markLost(r, cause)
		}
	}
}

func (g *group) Epoch() uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return uint32(len(g.epochs))
}

func (g *group) OnEpoch(f func(epoch uint32, lost []int)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.notes.onEpoch = append(g.notes.onEpoch, f)
	for _, d := range g.epochs {
		g.notes.add(&g.mu, func() { f(d.epoch, slices.Clone(d.lost)) })
	}
}
