// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// chaosLimit is the silence after which ranks of a chaosWorld suspect one another; signs of life come five times as often.
const chaosLimit = 1500 * time.Millisecond

// chaosRank is a rank of this process that can be killed, and that can stand still as SIGSTOP has it: it reads, writes,
// ticks and decides nothing, while the kernel goes on taking what comes.
type chaosRank struct {
	*group
	m     *mesh
	still gate
	deaf  gate
	pause func()       // ends all standing still at once; nil: it never stood still
	slow  atomic.Int64 // pause between two of its calls, ns
	dead  bool
	left  bool

	calls, timeouts atomic.Int64
	late            atomic.Int64 // longest that a call outlasted its deadline, ns
}

// chaosWorld is the ranks of a job and the wires between them.
type chaosWorld struct {
	n     int
	ranks []*chaosRank
	wires map[[2]int]*wire // lower rank first: ends[0] is its end
	begun time.Time
	probe atomic.Int64   // longest that a goroutine waited for its turn, ns
	done  chan struct{}  // closed when the world ends
	wg    sync.WaitGroup // the ranks' own work
	extra sync.WaitGroup // events that last

	mu    sync.Mutex
	trace []string
	bad   []string
}

// newChaosWorld makes n ranks as they are when a join is about to be confirmed, and confirms it.
func newChaosWorld(t testing.TB, n int, late time.Duration, dribble bool, rnd *rand.Rand) *chaosWorld {
	w := &chaosWorld{n: n, wires: map[[2]int]*wire{}, begun: time.Now(), done: make(chan struct{})}
	joiners := make([]*joiner, n)
	for r := range n {
		c := testConfig(r, n, "")
		c.Suspect, c.bootID = chaosLimit, fmt.Sprint("host ", r)
		c.setDefaults()
		joiners[r] = newJoiner(c, address{}, time.Now())
		w.ranks = append(w.ranks, &chaosRank{group: joiners[r].g, m: joiners[r].m})
	}
	for a := range n {
		for b := a + 1; b < n; b++ {
			y := newWire(t, w.done, late, dribble, rnd)
			w.wires[[2]int{a, b}] = y
			for i, r := range []int{a, b} {
				k := w.ranks[r]
				if !k.m.attach(a+b-r, gatedConn{y.ends[i], &k.still, &k.deaf, k.done}) {
					t.Fatalf("rank %d has a socket to rank %d already", r, a+b-r)
				}
			}
		}
	}
	w.watch()
	var wg sync.WaitGroup
	for r, j := range joiners {
		wg.Go(func() {
			j.m.spawn(j.m.d.beat)
			j.m.d.start()
			if err := j.confirm(t.Context()); err != nil && !w.starved() {
				w.wrong("rank %d: confirm: %v", r, err)
			}
			w.ranks[r].OnLost(func(q int, cause error) { w.note("%d lost %d: %v", r, q, cause) })
		})
	}
	wg.Wait()
	w.begun = time.Now()
	return w
}

// watch measures how late goroutines of this process get their turn.
func (w *chaosWorld) watch() {
	w.extra.Go(func() {
		const every = 20 * time.Millisecond
		for last := time.Now(); ; last = time.Now() {
			t := time.NewTimer(every)
			select {
			case <-t.C:
			case <-w.done:
				t.Stop()
				return
			}
			w.probe.Store(max(w.probe.Load(), int64(time.Since(last)-every)))
		}
	})
}

func (w *chaosWorld) starved() bool { return time.Duration(w.probe.Load()) > chaosStarved }

func (w *chaosWorld) note(format string, a ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = append(w.trace, fmt.Sprintf("%7.3f ", time.Since(w.begun).Seconds())+fmt.Sprintf(format, a...))
}

// wrong notes a violation.
func (w *chaosWorld) wrong(format string, a ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bad = append(w.bad, fmt.Sprintf(format, a...))
}

func (w *chaosWorld) hop(from, to int) *hop {
	if from < to {
		return w.wires[[2]int{from, to}].hops[0]
	}
	return w.wires[[2]int{to, from}].hops[1]
}

// work has each rank exchange with the others all the time, until its group ends.
func (w *chaosWorld) work() {
	for r, k := range w.ranks {
		w.wg.Go(func() {
			for i := 0; ; i++ {
				if w.exchange(r, k, i) {
					return
				}
			}
		})
	}
}

// exchange is one all-gather and what is expected of it. true: this rank's work is over.
func (w *chaosWorld) exchange(r int, k *chaosRank, i int) (over bool) {
	const timeout = 400 * time.Millisecond
	name := fmt.Sprint("round ", i)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	start := time.Now()
	all, err := k.AllGather(ctx, name, Blob{Bytes: []byte(fmt.Sprint(r, " ", name))})
	if late := int64(time.Since(start) - timeout); late > k.late.Load() {
		k.late.Store(late)
	}
	k.calls.Add(1)
	var lost *PeerLostError
	var gone *DepartedError
	var late *RemoteError
	switch {
	case err == nil:
		for q, b := range all {
			if want := fmt.Sprint(q, " ", name); string(b.Bytes) != want {
				w.wrong("rank %d: %s: rank %d says %q, want %q", r, name, q, b.Bytes, want)
			}
		}
	case errors.Is(err, ErrClosed):
		return true
	case errors.As(err, &lost), errors.As(err, &gone):
		// Fails at once from now on. It need not turn round at full speed.
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &late) && late.Text == context.DeadlineExceeded.Error():
		k.timeouts.Add(1)
	default:
		w.wrong("rank %d: %s: %v", r, name, err)
	}
	t := time.NewTimer(20*time.Millisecond + time.Duration(k.slow.Load()))
	defer t.Stop()
	select {
	case <-t.C:
	case <-k.done:
	}
	return false
}

func (w *chaosWorld) kill(r int) {
	k := w.ranks[r]
	if k.dead || k.left {
		return
	}
	k.dead = true
	w.note("%d is killed", r)
	w.extra.Go(func() { Kill(k.group) })
	<-k.done
	if k.pause != nil {
		k.pause() // its goroutines are to end
	}
}

func (w *chaosWorld) leave(r int) {
	k := w.ranks[r]
	if k.dead || k.left || k.pause != nil {
		return
	}
	k.left = true
	w.note("%d leaves", r)
	w.extra.Go(func() { k.Close() })
	<-k.done
}

// stand has a rank stand still for a time.
func (w *chaosWorld) stand(r int, long time.Duration) bool {
	k := w.ranks[r]
	if k.dead || k.left || k.pause != nil {
		return false
	}
	w.note("%d stands still for %v", r, long)
	k.still.close()
	k.m.d.mu.Lock()
	k.pause = sync.OnceFunc(func() {
		k.m.d.mu.Unlock()
		k.still.reopen()
	})
	w.after(long, func() {
		k.pause()
		w.note("%d goes on", r)
	})
	return true
}

// cut holds back what from sends to to, for a time.
func (w *chaosWorld) cut(from, to int, long time.Duration) {
	w.note("%d>%d is cut for %v", from, to, long)
	h := w.hop(from, to)
	h.cut.close()
	w.after(long, func() {
		h.cut.reopen()
		w.note("%d>%d is open", from, to)
	})
}

// after calls f when a time has passed, or when the world ends.
func (w *chaosWorld) after(long time.Duration, f func()) {
	w.extra.Go(func() {
		t := time.NewTimer(long)
		defer t.Stop()
		select {
		case <-t.C:
		case <-w.done:
		}
		f()
	})
}

// state is what a rank has decided, whether it has stopped, and why.
func (k *chaosRank) state() (log []decision, set rankSet, stopped bool, why string) {
	k.m.d.mu.Lock()
	defer k.m.d.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.epochs), k.m.d.sm.set.clone(), k.m.d.sm.stopped, k.m.d.sm.why
}

// settled is empty when all survivors have one set in one epoch, and nobody is in it who is gone.
func (w *chaosWorld) settled() string {
	first := -1
	var epochs int
	var set rankSet
	gone := newRankSet(w.n)
	for r, k := range w.ranks {
		if _, _, stopped, _ := k.state(); k.dead || stopped {
			gone.add(r)
		}
	}
	for r, k := range w.ranks {
		if k.left || gone.has(r) {
			continue
		}
		log, s, _, _ := k.state()
		switch {
		case !s.and(gone).empty():
			return fmt.Sprintf("rank %d has %v of the ranks that are gone, %v, in its set", r, s.and(gone).list(), gone.list())
		case first < 0:
			first, epochs, set = r, len(log), s
		case len(log) != epochs || !s.equal(set):
			return fmt.Sprintf("rank %d is in epoch %d with %v, rank %d in %d with %v", first, epochs, set.list(), r, len(log), s.list())
		}
	}
	return ""
}

// agree checks that no two ranks decided differently about an epoch. Of those that were killed the last decision may
// have died with them, so they are left out.
func (w *chaosWorld) agree() {
	by := map[uint32]string{}
	for r, k := range w.ranks {
		if k.dead {
			continue
		}
		log, _, _, _ := k.state()
		for _, d := range log {
			says := fmt.Sprintf("lost %v left %v", d.lost, d.left)
			if was, ok := by[d.epoch]; ok && was != says {
				w.wrong("epoch %d: rank %d: %s; before: %s", d.epoch, r, says, was)
			}
			by[d.epoch] = says
		}
	}
}

// end closes all that is left, and checks that everything ends.
func (w *chaosWorld) end() {
	close(w.done) // cuts and pauses are over
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.extra.Wait()
		var wg sync.WaitGroup
		for _, k := range w.ranks {
			wg.Go(func() { k.Close() })
		}
		wg.Wait()
		w.wg.Wait()
		for _, y := range w.wires {
			y.close()
		}
	}()
	t := time.NewTimer(testBound)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		w.wrong("a call, a goroutine or a socket does not end within %v of Close", testBound)
	}
}

func (w *chaosWorld) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.trace, "\n")
}
