// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestConcurrentCallsTakeTurns(t *testing.T) {
	both(t, 2, func(t *testing.T, gs []Group) {
		each(gs, func(g Group) {
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					if _, err := g.AllGather(t.Context(), "same", Blob{}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		first := make(chan error, 1)
		g := gs[0].(*group)
		go func() {
			_, err := g.AllGather(t.Context(), "held", Blob{})
			first <- err
		}()
		for len(g.turn) == 0 { // until the first call has its turn
			time.Sleep(time.Millisecond) // sleep: a turn tells nobody that it was taken
		}
		if _, err := g.AllGather(ctx, "second", Blob{}); err == nil || !strings.Contains(err.Error(), "not begun") {
			t.Errorf("second call: %v", err)
		}
		if _, err := gs[1].AllGather(t.Context(), "held", Blob{}); err != nil {
			t.Error(err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// A rank that calls but never looks at what comes is bounded, and in the end given up.
func TestAheadIsBounded(t *testing.T) {
	both(t, 2, func(t *testing.T, gs []Group) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		lost := make(chan error, 2) // seen by the receiver, or by the sender if its socket took less than its queue
		gs[0].OnLost(func(_ int, cause error) { lost <- cause })
		gs[1].OnLost(func(_ int, cause error) { lost <- cause })
		for range maxAheadFrames + 1 {
			gs[0].AllGather(ended, "x", Blob{})
		}
		select {
		case cause := <-lost:
			if errors.Is(cause, ErrNoGoodbye) {
				cause = <-lost // one end gave up, the other saw only that
			}
			if !strings.Contains(cause.Error(), "ahead") && !strings.Contains(cause.Error(), "reads nothing") {
				t.Errorf("lost: %v", cause)
			}
		case <-time.After(testBound):
			t.Error("never given up")
		}
	})
}

// When a rank is lost or has left, calls fail by themselves: one rank may make them as fast as it likes, and another that
// is slow is not run over.
func TestCallsAfterALoss(t *testing.T) {
	for _, end := range []func(Group){Kill, func(g Group) { g.Close() }} {
		both(t, 3, func(t *testing.T, gs []Group) {
			gone := func(err error) bool {
				var lost *PeerLostError
				var left *DepartedError
				return errors.As(err, &lost) && lost.Rank == 2 || errors.As(err, &left) && left.Rank == 2
			}
			end(gs[2])
			for range 3 * maxAheadFrames {
				if _, err := gs[0].AllGather(t.Context(), "x", Blob{}); !gone(err) {
					t.Fatal(err)
				}
			}
			for range 2 {
				if _, err := gs[1].AllGather(t.Context(), "x", Blob{}); !gone(err) {
					t.Errorf("the slow rank: %v", err)
				}
			}
			if a, b := gs[0].Epoch(), gs[1].Epoch(); a != b || a > 1 {
				t.Errorf("epochs %d and %d", a, b)
			}
		})
	}
}

// A rank leaves when its contribution has reached one of two others. That one waits for the other, which cannot succeed,
// and gets what there is of it.
func TestLeavesInTheMiddle(t *testing.T) {
	gs := makers["local"](t, 3)
	defer closeGroups(gs)
	if err := gs[1].(*group).deliver(0, contribution{name: "x", blob: Blob{Bytes: []byte("last")}}); err != nil {
		t.Fatal(err)
	}
	gs[1].(*group).setDeparted(0, "")
	gs[2].(*group).setDeparted(0, "")
	var left *DepartedError
	if _, err := gs[2].AllGather(t.Context(), "x", Blob{}); !errors.As(err, &left) || left.Rank != 0 {
		t.Errorf("the one that it did not reach: %v", err)
	}
	if all, err := gs[1].AllGather(t.Context(), "x", Blob{}); err != nil || string(all[0].Bytes) != "last" {
		t.Errorf("the one that it reached: %v", err)
	}
}

// A rank that has stopped says nothing more, whatever it goes on to call: the others would take it for living.
func TestStoppedIsSilent(t *testing.T) {
	checkLeaks(t)
	gs := mustJoin(t, tcpConfigs(t, 3, func(c *Config) { c.bootID, c.Suspect = string(rune('a'+c.Rank)), time.Second }))
	defer closeGroups(gs)
	lost := make(chan int, 4)
	for _, g := range gs[:2] {
		g.OnLost(func(r int, _ error) { lost <- r })
	}
	d := gs[2].(*group).tr.(*mesh).d
	d.mu.Lock()
	d.sm.stopped, d.sm.why = true, "told to" // and nobody hears of it
	d.flush()
	d.mu.Unlock()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for beat := time.NewTicker(20 * time.Millisecond); ; gs[2].AllGather(ended, "x", Blob{}) {
			select {
			case <-stop:
				beat.Stop()
				return
			case <-beat.C:
			}
		}
	})
	for range 2 {
		select {
		case r := <-lost:
			if r != 2 {
				t.Errorf("rank %d is lost", r)
			}
		case <-time.After(testBound):
			t.Error("a rank that stopped is still a member")
		}
	}
	close(stop)
	wg.Wait()
}

func TestLocalBadSize(t *testing.T) {
	for _, n := range []int{0, -1, MaxRanks + 1} {
		if gs, err := Local(n); err == nil || gs != nil || !strings.Contains(err.Error(), fmt.Sprint(n)) {
			t.Errorf("Local(%d): %v", n, err)
		}
	}
}
