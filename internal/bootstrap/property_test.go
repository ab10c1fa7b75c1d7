// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// plan is one round as the test draws it: what each rank gives, and in which order the ranks enter.
type plan struct {
	name  string
	blobs []drawn
	order []int // a permutation of the ranks
	chain int   // so many of the first ranks enter one after another, each once the one before is about to call
}

type drawn struct {
	size int
	fds  int
	seed uint64
}

func (d drawn) bytes() []byte {
	r := rand.New(rand.NewPCG(d.seed, 1))
	block := make([]byte, 251) // prime: a shift by any power of two shows
	for i := range block {
		block[i] = byte(r.Uint32())
	}
	return bytes.Repeat(block, d.size/len(block)+1)[:d.size]
}

func drawPlan(t *rapid.T, n int) plan {
	p := plan{name: rapid.StringN(0, 20, 60).Draw(t, "name"), chain: rapid.IntRange(0, n).Draw(t, "chain")}
	p.order = rapid.Permutation(seq(n)).Draw(t, "order")
	for range n {
		p.blobs = append(p.blobs, drawn{
			size: rapid.OneOf(rapid.IntRange(0, 200), rapid.SampledFrom([]int{0, 1, headerBytes, 64 << 10, 64<<10 + 1, 1 << 20})).Draw(t, "size"),
			fds:  rapid.SampledFrom([]int{0, 0, 1, 3, 251}).Draw(t, "fds"),
			seed: rapid.Uint64().Draw(t, "seed"),
		})
	}
	return p
}

func seq(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// reference is the all-gather in its dumbest form: everybody gets everybody's.
func reference(p plan) [][]byte {
	var out [][]byte
	for _, d := range p.blobs {
		out = append(out, d.bytes())
	}
	return out
}

// runRound lets every rank of gs enter in the drawn order and returns what each got.
func runRound(t testing.TB, gs []Group, p plan, hook func(rank int)) ([][]Blob, []error) {
	got, errs := make([][]Blob, len(gs)), make([]error, len(gs))
	entered := make([]chan struct{}, len(gs))
	for i := range entered {
		entered[i] = make(chan struct{})
	}
	var wg sync.WaitGroup
	for i, r := range p.order {
		wg.Go(func() {
			if i > 0 && i < p.chain {
				<-entered[i-1]
			}
			close(entered[i])
			mine := Blob{Bytes: p.blobs[r].bytes()}
			for k := range p.blobs[r].fds {
				mine.FDs = append(mine.FDs, memfd(t, fmt.Sprintf("%d/%d", r, k)))
			}
			if hook != nil {
				hook(r)
			}
			got[r], errs[r] = gs[r].AllGather(t.Context(), p.name, mine)
			closeAll(mine.FDs)
			clear(mine.Bytes) // allowed as soon as the call has returned
		})
	}
	wg.Wait()
	return got, errs
}

// checkRound compares what rank me got with the reference and closes its descriptors.
func checkRound(t *rapid.T, g Group, got []Blob, p plan, want [][]byte) {
	me := g.Rank()
	for r, b := range got {
		if r == me {
			continue
		}
		if !bytes.Equal(b.Bytes, want[r]) {
			t.Errorf("rank %d: %d bytes of rank %d differ from the %d sent", me, len(b.Bytes), r, len(want[r]))
		}
		fds := p.blobs[r].fds
		if !g.CanPassFDs(r) {
			fds = 0
		}
		if len(b.FDs) != fds {
			t.Errorf("rank %d: %d descriptors of rank %d, want %d", me, len(b.FDs), r, fds)
		}
		for k, fd := range b.FDs {
			if s := fdText(fd); s != fmt.Sprintf("%d/%d", r, k) {
				t.Errorf("rank %d: descriptor %d of rank %d holds %q", me, k, r, s)
			}
		}
		closeAll(b.FDs)
	}
}

func TestPropertyAllGather(t *testing.T) {
	for form, mk := range makers {
		t.Run(form, func(t *testing.T) {
			checkLeaks(t)
			rapid.Check(t, func(rt *rapid.T) {
				n := rapid.IntRange(1, 4).Draw(rt, "ranks")
				gs := mk(t, n)
				defer closeGroups(gs)
				for range rapid.IntRange(1, 3).Draw(rt, "rounds") {
					p := drawPlan(rt, n)
					got, errs := runRound(t, gs, p, nil)
					if err := errors.Join(errs...); err != nil {
						rt.Fatal(err)
					}
					want := reference(p)
					for r := range gs {
						checkRound(rt, gs[r], got[r], p, want)
					}
				}
			})
		})
	}
}

// Ranks die or leave at drawn places, also between the other ranks' contributions. Then each call either gives exactly
// the reference, or an error that names a rank which really is gone; and nobody hangs.
func TestPropertyLoss(t *testing.T) {
	for form, mk := range makers {
		t.Run(form, func(t *testing.T) {
			checkLeaks(t)
			rapid.Check(t, func(rt *rapid.T) {
				n := rapid.IntRange(2, 4).Draw(rt, "ranks")
				victim := rapid.IntRange(0, n-1).Draw(rt, "victim")
				at := rapid.IntRange(0, 2).Draw(rt, "round")
				by := rapid.IntRange(0, n-1).Draw(rt, "when this rank enters")
				kill := rapid.Bool().Draw(rt, "kill")
				gs := mk(t, n)
				defer closeGroups(gs)
				for round := range 3 {
					p := drawPlan(rt, n)
					got, errs := runRound(t, gs, p, func(r int) {
						if round == at && r == by {
							if kill {
								Kill(gs[victim])
							} else {
								gs[victim].Close()
							}
						}
					})
					want := reference(p)
					for r, err := range errs {
						var lost *PeerLostError
						var gone *DepartedError
						switch {
						case err == nil && round > at:
							rt.Errorf("round %d: rank %d: success without rank %d", round, r, victim)
						case err == nil:
							checkRound(rt, gs[r], got[r], p, want)
						case round < at:
							rt.Errorf("round %d: rank %d: %v", round, r, err)
						case r == victim && errors.Is(err, ErrClosed):
						case kill && errors.As(err, &lost) && lost.Rank == victim:
						case !kill && errors.As(err, &gone) && gone.Rank == victim:
						default:
							rt.Errorf("round %d: rank %d: %v; the victim is %d", round, r, err, victim)
						}
					}
				}
			})
		})
	}
}
