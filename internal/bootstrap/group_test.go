// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestAllGather(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		both(t, n, func(t *testing.T, gs []Group) {
			each(gs, func(g Group) {
				for round := range 3 {
					mine := Blob{Bytes: fmt.Appendf(nil, "rank %d round %d", g.Rank(), round)}
					all, err := g.AllGather(t.Context(), fmt.Sprint("round", round), mine)
					if err != nil {
						t.Error(err)
						return
					}
					for r, b := range all {
						if want := fmt.Sprintf("rank %d round %d", r, round); string(b.Bytes) != want {
							t.Errorf("rank %d: blob of rank %d is %q, want %q", g.Rank(), r, b.Bytes, want)
						}
					}
				}
				if g.Size() != n || !g.SameHost(0) || !g.SameHost(n-1) || g.SameHost(n) || g.SameHost(-1) {
					t.Errorf("rank %d: size %d, same host %v %v %v %v", g.Rank(), g.Size(), g.SameHost(0), g.SameHost(n-1), g.SameHost(n), g.SameHost(-1))
				}
			})
		})
	}
}

// 600 descriptors take three messages. The contributor closes its own at once.
func TestAllGatherFDs(t *testing.T) {
	both(t, 3, func(t *testing.T, gs []Group) {
		each(gs, func(g Group) {
			var mine Blob
			n := []int{0, 1, 600}[g.Rank()]
			for i := range n {
				mine.FDs = append(mine.FDs, memfd(t, fmt.Sprintf("rank %d fd %d", g.Rank(), i)))
			}
			all, err := g.AllGather(t.Context(), "fds", mine)
			closeAll(mine.FDs)
			if err != nil {
				t.Error(err)
				return
			}
			for r, b := range all {
				if want := []int{0, 1, 600}[r]; len(b.FDs) != want {
					t.Errorf("rank %d: %d descriptors of rank %d, want %d", g.Rank(), len(b.FDs), r, want)
				}
				if r == g.Rank() {
					if !slices.Equal(b.FDs, mine.FDs) {
						t.Errorf("rank %d: own descriptors were replaced", r)
					}
					continue
				}
				for i, fd := range b.FDs {
					if got, want := fdText(fd), fmt.Sprintf("rank %d fd %d", r, i); got != want || !cloexec(fd) {
						t.Errorf("rank %d: descriptor %d holds %q, want %q (close-on-exec %v)", g.Rank(), fd, got, want, cloexec(fd))
					}
				}
				closeAll(b.FDs)
			}
		})
	})
}

func TestLocalValueAndCopies(t *testing.T) {
	both(t, 2, func(t *testing.T, gs []Group) {
		_, local := gs[0].(*group).tr.(*localNet)
		each(gs, func(g Group) {
			mine := Blob{Bytes: []byte("abc"), Local: g}
			all, err := g.AllGather(t.Context(), "v", mine)
			if err != nil {
				t.Error(err)
				return
			}
			other := 1 - g.Rank()
			if want := any(gs[other]); local && all[other].Local != want || !local && all[other].Local != nil {
				t.Errorf("rank %d: Local of rank %d is %v", g.Rank(), other, all[other].Local)
			}
			all[other].Bytes[0]++ // seen by the race detector if it were shared
			mine.Bytes[1]++
			if string(all[other].Bytes) != "bbc" {
				t.Errorf("rank %d: %q", g.Rank(), all[other].Bytes)
			}
		})
	})
}

func TestWrongName(t *testing.T) {
	both(t, 3, func(t *testing.T, gs []Group) {
		each(gs, func(g Group) {
			_, err := g.AllGather(t.Context(), []string{"a", "a", "b"}[g.Rank()], Blob{})
			var ne *NameError
			if !errors.As(err, &ne) {
				t.Errorf("rank %d: %v, want a NameError", g.Rank(), err)
				return
			}
			for _, want := range []string{`"a"`, `"b"`, fmt.Sprint("rank ", g.Rank()), "rank 2"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("rank %d: %q does not name %s", g.Rank(), err, want)
				}
			}
			// Ranks are in step still.
			if _, err := g.AllGather(t.Context(), "c", Blob{}); err != nil {
				t.Error(err)
			}
		})
	})
}

// A rank whose own call is refused tells the others.
func TestRefusedContribution(t *testing.T) {
	bad := map[string]Blob{
		"bytes": {Bytes: make([]byte, MaxBytes+1)},
		"fds":   {FDs: make([]int, MaxFDs+1)},
		"stale": {FDs: []int{1 << 28}},
	}
	for what, blob := range bad {
		both(t, 3, func(t *testing.T, gs []Group) {
			each(gs, func(g Group) {
				mine := Blob{}
				if g.Rank() == 1 {
					mine = blob
				}
				_, err := g.AllGather(t.Context(), what, mine)
				var re *RemoteError
				if err == nil || g.Rank() != 1 && (!errors.As(err, &re) || re.Rank != 1) {
					t.Errorf("%s: rank %d: %v", what, g.Rank(), err)
				}
				if _, err := g.AllGather(t.Context(), "after", Blob{}); err != nil {
					t.Error(err)
				}
			})
		})
	}
	both(t, 2, func(t *testing.T, gs []Group) {
		each(gs, func(g Group) {
			ctx, name := t.Context(), strings.Repeat("n", MaxName+1)
			if _, err := g.AllGather(ctx, name, Blob{}); err == nil || !strings.Contains(err.Error(), "name has 256 bytes") {
				t.Errorf("long name: %v", err)
			}
			ended, cancel := context.WithCancel(ctx)
			cancel()
			if g.Rank() == 0 {
				ctx = ended
			}
			var re *RemoteError
			if _, err := g.AllGather(ctx, "ended", Blob{}); g.Rank() == 0 && !errors.Is(err, context.Canceled) || g.Rank() == 1 && !errors.As(err, &re) {
				t.Errorf("ended context: rank %d: %v", g.Rank(), err)
			}
		})
	})
}

func TestLargest(t *testing.T) {
	both(t, 2, func(t *testing.T, gs []Group) {
		each(gs, func(g Group) {
			mine := bytes.Repeat([]byte{byte(g.Rank() + 1)}, MaxBytes)
			all, err := g.AllGather(t.Context(), strings.Repeat("n", MaxName), Blob{Bytes: mine})
			if err != nil {
				t.Error(err)
				return
			}
			if want := bytes.Repeat([]byte{byte(2 - g.Rank())}, MaxBytes); !bytes.Equal(all[1-g.Rank()].Bytes, want) {
				t.Errorf("rank %d: wrong bytes", g.Rank())
			}
		})
	})
}

// The late rank's contribution belongs to a round that ended; it is dropped and the next round is whole.
func TestTimeoutNamesMissing(t *testing.T) {
	both(t, 4, func(t *testing.T, gs []Group) {
		each(gs[:2], func(g Group) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			fd := memfd(t, "x")
			defer closeFD(fd)
			_, err := g.AllGather(ctx, "t", Blob{FDs: []int{fd}})
			var te *TimeoutError
			if !errors.As(err, &te) || !slices.Equal(te.Missing, []int{2, 3}) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "for ranks 2, 3 (of 4)") {
				t.Errorf("rank %d: %v", g.Rank(), err)
			}
		})
		each(gs, func(g Group) {
			if g.Rank() >= 2 {
				fd := memfd(t, "late")
				defer closeFD(fd)
				all, err := g.AllGather(t.Context(), "t", Blob{FDs: []int{fd}})
				if err != nil {
					t.Error(err)
				}
				for r, b := range all {
					if r != g.Rank() {
						closeAll(b.FDs)
					}
				}
			}
			all, err := g.AllGather(t.Context(), "u", Blob{Bytes: []byte{byte(g.Rank())}})
			if err != nil {
				t.Error(err)
				return
			}
			for r, b := range all {
				if b.Bytes[0] != byte(r) || len(b.FDs) != 0 {
					t.Errorf("rank %d: blob of rank %d is %v", g.Rank(), r, b)
				}
			}
		})
	})
}

func TestWaitIsLogged(t *testing.T) {
	both(t, 2, func(t *testing.T, gs []Group) {
		line := make(chan string, 8)
		g := gs[0].(*group)
		g.warnAfter, g.log = time.Millisecond, slog.New(slog.NewTextHandler(lineWriter(line), nil))
		done := make(chan error)
		go func() {
			_, err := g.AllGather(t.Context(), "slow", Blob{})
			done <- err
		}()
		if got := <-line; !strings.Contains(got, "rank 1") || !strings.Contains(got, "slow") {
			t.Errorf("logged %q", got)
		}
		if _, err := gs[1].AllGather(t.Context(), "slow", Blob{}); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

type lineWriter chan string

func (w lineWriter) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

func TestKill(t *testing.T) {
	both(t, 4, func(t *testing.T, gs []Group) {
		type loss struct {
			at, rank int
			cause    error
		}
		losses := make(chan loss, 16)
		for _, g := range gs[:3] {
			g.OnLost(func(r int, cause error) { losses <- loss{g.Rank(), r, cause} })
			g.OnDeparted(func(r int) {
				if r == 3 {
					t.Errorf("rank %d: killed rank departed", g.Rank())
				}
			})
		}
		pending := make(chan error, 3)
		for _, g := range gs[:3] {
			go func() {
				_, err := g.AllGather(t.Context(), "pending", Blob{})
				pending <- err
			}()
		}
		for r, g := range gs[:3] {
			if r := r + 1; g.Gone(r) || g.Gone(-1) || g.Gone(4) {
				t.Errorf("rank %d is gone before anything happened, or one is that never was", r)
			}
		}
		Kill(gs[3])
		var pe *PeerLostError
		for range 3 {
			if err := <-pending; !errors.As(err, &pe) || pe.Rank != 3 {
				t.Errorf("pending: %v", err)
			}
			if l := <-losses; l.rank != 3 || !errors.Is(l.cause, ErrKilled) && !errors.Is(l.cause, ErrNoGoodbye) && !errors.Is(l.cause, ErrAgreed) {
				t.Errorf("loss %v", l)
			}
		}
		each(gs[:3], func(g Group) {
			var pe *PeerLostError
			if _, err := g.AllGather(t.Context(), "later", Blob{}); !errors.As(err, &pe) || pe.Rank != 3 {
				t.Errorf("later: %v", err)
			}
		})
		if _, err := gs[3].AllGather(t.Context(), "x", Blob{}); !errors.Is(err, ErrClosed) {
			t.Errorf("killed rank: %v", err)
		}
		if !gs[3].Gone(0) || gs[3].Gone(3) {
			t.Error("to the killed rank others are there, or it is gone itself")
		}
		// Registered late: reported at once, and once.
		gs[0].OnLost(func(r int, cause error) { losses <- loss{0, r, cause} })
		if l := <-losses; l.rank != 3 {
			t.Errorf("late registration: %v", l)
		}
		if len(losses) != 0 {
			t.Errorf("%d more losses: %v", len(losses), <-losses)
		}
		if d := gs[0].Departed(); len(d) != 0 || !gs[0].Gone(3) {
			t.Errorf("departed: %v; rank 3 is gone: %v", d, gs[0].Gone(3))
		}
		Kill(gs[3])
		gs[3].Close()
	})
}

func TestDepart(t *testing.T) {
	both(t, 3, func(t *testing.T, gs []Group) {
		gone := make(chan int, 4)
		gs[0].OnLost(func(r int, cause error) { t.Errorf("rank %d lost: %v", r, cause) })
		gs[0].OnDeparted(func(r int) { gone <- r })
		if err := gs[2].Close(); err != nil {
			t.Error(err)
		}
		if r := <-gone; r != 2 {
			t.Errorf("rank %d departed", r)
		}
		if d := gs[0].Departed(); !slices.Equal(d, []int{2}) || !gs[0].Gone(2) || gs[0].Gone(1) {
			t.Errorf("departed: %v; rank 2 is gone: %v", d, gs[0].Gone(2))
		}
		each(gs[:2], func(g Group) {
			_, err := g.AllGather(t.Context(), "x", Blob{})
			var de *DepartedError
			if !errors.As(err, &de) || de.Rank != 2 {
				t.Errorf("rank %d: %v", g.Rank(), err)
			}
		})
		gs[0].OnDeparted(func(r int) { gone <- r + 100 })
		if r := <-gone; r != 102 {
			t.Errorf("late registration: %d", r)
		}
	})
}

// A rank that leaves right after the last round has contributed to it: nobody fails.
func TestLeaveAfterContributing(t *testing.T) {
	both(t, 4, func(t *testing.T, gs []Group) {
		each(gs, func(g Group) {
			fd := memfd(t, "last words")
			all, err := g.AllGather(t.Context(), "last", Blob{Bytes: make([]byte, 1<<20), FDs: []int{fd}})
			closeFD(fd)
			g.Close()
			if err != nil {
				t.Errorf("rank %d: %v", g.Rank(), err)
				return
			}
			for r, b := range all {
				if r == g.Rank() {
					continue
				}
				if len(b.Bytes) != 1<<20 || fdText(b.FDs[0]) != "last words" {
					t.Errorf("rank %d: blob of rank %d", g.Rank(), r)
				}
				closeAll(b.FDs)
			}
		})
	})
}

func TestCloseEndsPending(t *testing.T) {
	both(t, 2, func(t *testing.T, gs []Group) {
		errs := make(chan error, 2)
		for range 2 { // one in the round, one waiting for its turn
			go func() {
				_, err := gs[0].AllGather(t.Context(), "x", Blob{})
				errs <- err
			}()
		}
		each([]Group{gs[0], gs[0], gs[0]}, func(g Group) { g.Close() })
		for range 2 {
			if err := <-errs; !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
		if _, err := gs[0].AllGather(t.Context(), "x", Blob{}); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// Close from within a notification must not wait for itself.
func TestCloseInNotification(t *testing.T) {
	both(t, 3, func(t *testing.T, gs []Group) {
		var wg sync.WaitGroup
		wg.Add(2)
		for _, g := range gs[:2] {
			var once sync.Once
			end := func() { g.Close(); once.Do(wg.Done) }
			g.OnLost(func(int, error) { end() })
			g.OnDeparted(func(int) { end() })
		}
		Kill(gs[2])
		wg.Wait()
	})
}

// What is queued when Close begins, or comes up later, is not called.
func TestNoNotificationAfterClose(t *testing.T) {
	both(t, 3, func(t *testing.T, gs []Group) {
		g := gs[0].(*group)
		called := make(chan int, 4)
		release := make(chan struct{})
		g.OnLost(func(r int, _ error) { called <- r; <-release })
		Kill(gs[1])
		Kill(gs[2])
		<-called
		for lost := 0; lost < 2; { // until both losses are known, one of them queued
			lost = 0
			g.mu.Lock()
			for _, p := range g.peers {
				if p.lost != nil {
					lost++
				}
			}
			g.mu.Unlock()
			runtime.Gosched()
		}
		g.Close()
		g.OnLost(func(r int, _ error) { called <- r })
		close(release)
		for running := true; running; {
			g.mu.Lock()
			running = g.notes.running
			g.mu.Unlock()
			runtime.Gosched()
		}
		if len(called) != 0 {
			t.Errorf("called for rank %d after Close", <-called)
		}
	})
}
