// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

// surviving has each of gs agree, and checks that all got want.
func surviving(t *testing.T, gs []Group, want ...int) {
	t.Helper()
	each(gs, func(g Group) {
		if set, err := g.Survivors(t.Context()); err != nil || !slices.Equal(set, want) {
			t.Errorf("rank %d: survivors %v, want %v: %v", g.Rank(), set, want, err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}

// together has gs exchange, and checks that each got all, and nothing of those that are out.
func together(t *testing.T, gs []Group, name string) {
	t.Helper()
	each(gs, func(g Group) {
		all, err := g.AllGather(t.Context(), name, Blob{Bytes: []byte(fmt.Sprint(name, g.Rank()))})
		if err != nil {
			t.Errorf("rank %d: %v", g.Rank(), err)
			return
		}
		for r, b := range all {
			var want []byte
			if slices.ContainsFunc(gs, func(g Group) bool { return g.Rank() == r }) {
				want = []byte(fmt.Sprint(name, r))
			}
			if !bytes.Equal(b.Bytes, want) {
				t.Errorf("rank %d: rank %d gave %q, want %q", g.Rank(), r, b.Bytes, want)
			}
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}

// Survivors agree once each has seen the loss at a place of its own, out of step with the others, and go on.
func TestSurvivorsGoOn(t *testing.T) {
	for name, end := range map[string]func(Group){"killed": Kill, "left": func(g Group) { g.Close() }} {
		t.Run(name, func(t *testing.T) {
			both(t, 5, func(t *testing.T, gs []Group) {
				surviving(t, gs, 0, 1, 2, 3, 4) // nobody is lost: they agree all the same
				together(t, gs, "all")
				end(gs[1])
				end(gs[4])
				left := []Group{gs[0], gs[2], gs[3]}
				each(left, func(g Group) {
					for range 1 + g.Rank() {
						if _, err := g.AllGather(t.Context(), "in vain", Blob{}); err == nil {
							t.Error("an all-gather without two ranks")
						}
					}
				})
				surviving(t, left, 0, 2, 3)
				for i := range 3 {
					together(t, left, fmt.Sprint("left", i))
				}
				end(gs[0])
				surviving(t, left[1:], 2, 3)
				together(t, left[1:], "two")
				end(gs[2])
				surviving(t, left[2:], 3)
				together(t, left[2:], "one")
			})
		})
	}
}

// A rank that lives and does not call is waited for, and named. When it calls it gets what the others agreed on.
func TestSurvivorsWaitForTheLiving(t *testing.T) {
	both(t, 3, func(t *testing.T, gs []Group) {
		Kill(gs[0])
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var timeout *TimeoutError
		if _, err := gs[1].Survivors(ctx); !errors.As(err, &timeout) || !slices.Equal(timeout.Missing, []int{2}) {
			t.Fatalf("rank 1 got %v", err)
		}
		surviving(t, gs[2:], 1, 2) // rank 1 has called, though it gave up
		late := make(chan error)
		go func() {
			_, err := gs[1].AllGather(t.Context(), "old", Blob{}) // it does not know of the agreement
			late <- err
		}()
		var lost *PeerLostError
		if err := <-late; !errors.As(err, &lost) {
			t.Errorf("rank 1: %v", err)
		}
		surviving(t, gs[1:2], 1, 2)
		together(t, gs[1:], "on")
	})
}

// A rank in an all-gather of before learns that the others have gone on, and does not wait for them.
func TestSurvivorsHaveGoneOn(t *testing.T) {
	both(t, 2, func(t *testing.T, gs []Group) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		gs[0].Survivors(ctx) // asks, and gives up
		surviving(t, gs[1:], 0, 1)
		late := make(chan error)
		go func() {
			_, err := gs[0].AllGather(t.Context(), "old", Blob{})
			late <- err
		}()
		go gs[1].AllGather(t.Context(), "new", Blob{})
		var remote *RemoteError
		if err := <-late; !errors.As(err, &remote) || remote.Rank != 1 {
			t.Errorf("rank 0: %v", err)
		}
		surviving(t, gs[:1], 0, 1)
		if _, err := gs[0].AllGather(t.Context(), "new", Blob{}); err != nil {
			t.Error(err)
		}
	})
}

// One rank's word is enough: the others see a loss as any other and go on, the rank itself is cut off, though it lives. The
// highest expels the lowest, which leads the agreement.
func TestExpel(t *testing.T) {
	why := errors.New("of no use")
	both(t, 4, func(t *testing.T, gs []Group) {
		together(t, gs, "all")
		for out := range 3 {
			by, left := gs[3], gs[out+1:]
			for _, r := range []int{-1, 3, 4} {
				if err := by.Expel(r, why); err == nil || !strings.Contains(err.Error(), "another one of 0 to 3") {
					t.Errorf("rank 3 expels %d: %v", r, err)
				}
			}
			lost := make(chan error, 4)
			by.OnLost(func(r int, cause error) {
				if r == out {
					lost <- cause
				}
			})
			if err := by.Expel(out, why); err != nil {
				t.Error(err)
			}
			surviving(t, left, []int{1, 2, 3}[out:]...)
			together(t, left, fmt.Sprint("without", out))
			if cause := <-lost; !errors.Is(cause, ErrExpelled) || !errors.Is(cause, why) {
				t.Errorf("rank 3 lost %d: %v", out, cause)
			}
			if _, err := gs[out].Survivors(t.Context()); !errors.Is(err, ErrCutOff) {
				t.Errorf("rank %d: %v", out, err)
			}
			if err := by.Expel(out, why); err != nil { // again
				t.Error(err)
			}
		}
		gs[3].Close()
		if err := gs[3].Expel(0, why); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// A rank that is cut off gets no set, and neither does one that is closed meanwhile.
func TestSurvivorsWithoutAPart(t *testing.T) {
	gs := makers["local"](t, 3)
	defer closeGroups(gs)
	gs[2].(*group).tr.(*localNet).lose(2, errors.New("for the test"))
	if _, err := gs[2].Survivors(t.Context()); !errors.Is(err, ErrCutOff) {
		t.Errorf("cut off: %v", err)
	}
	closed := make(chan error)
	go func() {
		_, err := gs[0].Survivors(t.Context())
		closed <- err
	}()
	gs[0].Close()
	if err := <-closed; !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	surviving(t, gs[1:2], 1)
}

// Ranks are killed at random moments, also while others agree. Whoever is left goes on calling until an all-gather among
// the survivors has succeeded; agreement n is the same set on all that got it.
func TestSurvivorsAtRandomMoments(t *testing.T) {
	rounds := 12
	if testenv.Long() {
		rounds = 300
	}
	rnd := testenv.Random(t)
	for _, form := range []string{"local", "join", "tcp"} {
		t.Run(form, func(t *testing.T) {
			checkLeaks(t)
			for range rounds {
				randomMoments(t, form, rand.New(rand.NewPCG(rnd.Uint64(), 0)))
			}
		})
	}
}

func randomMoments(t *testing.T, form string, rnd *rand.Rand) {
	n := 2 + rnd.IntN(4)
	gs := makers[form](t, n)
	defer closeGroups(gs)
	doomed := rnd.Perm(n)[:rnd.IntN(n)]
	if form == "tcp" { // each loss leaves a majority, as it must where an end is not certain
		doomed = doomed[:min(len(doomed), (n-1)/2)]
	}
	var mu sync.Mutex
	agreed := map[int][][]int{} // by number
	after := make([]time.Duration, n)
	for _, r := range doomed {
		after[r] = time.Duration(1+rnd.IntN(3000)) * time.Microsecond
	}
	each(gs, func(g Group) {
		if d := after[g.Rank()]; d > 0 {
			defer time.AfterFunc(d, func() { Kill(g) }).Stop()
		}
		for i := 0; ; i++ {
			if _, err := g.AllGather(t.Context(), "work", Blob{}); err == nil {
				if i < 50 || len(doomed) > 0 && g.Epoch() == 0 {
					continue
				}
			}
			set, err := g.Survivors(t.Context())
			if err != nil {
				if !slices.Contains(doomed, g.Rank()) {
					t.Errorf("rank %d of %d: %v", g.Rank(), n, err)
				}
				return
			}
			mu.Lock()
			at := int(g.(*group).taken)
			agreed[at] = append(agreed[at], set)
			mu.Unlock()
			if len(set) == n-len(doomed) {
				break
			}
		}
		if _, err := g.AllGather(t.Context(), "end", Blob{}); err != nil && !slices.Contains(doomed, g.Rank()) {
			t.Errorf("rank %d of %d, doomed %v: %v", g.Rank(), n, doomed, err)
		}
	})
	for at, sets := range agreed {
		for _, s := range sets {
			if !slices.Equal(s, sets[0]) {
				t.Errorf("agreement %d: %v and %v", at, s, sets[0])
			}
		}
	}
}

// A rank that calls brings the others out of the all-gather that they wait in, though nobody is lost.
func TestSurvivorsInterrupt(t *testing.T) {
	both(t, 3, func(t *testing.T, gs []Group) {
		together(t, gs, "before")
		each(gs, func(g Group) {
			var name *NameError
			if g.Rank() > 0 {
				if _, err := g.AllGather(t.Context(), "with rank 0", Blob{}); !errors.As(err, &name) || name.PeerName != survivorsName {
					t.Errorf("rank %d: %v", g.Rank(), err)
				}
			}
			if set, err := g.Survivors(t.Context()); err != nil || len(set) != 3 {
				t.Errorf("rank %d: %v, %v", g.Rank(), set, err)
			}
		})
		together(t, gs, "after")
	})
}
