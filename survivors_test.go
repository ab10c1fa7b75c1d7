// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// putsAmong is what ranks do with new memory: each puts to each, and stores to each of its node, then signals, and looks at
// what came. out are ranks that are not among them. It says what failed, as it may where ranks die.
func putsAmong(r *rank, set []int) error {
	const part = 64
	n := r.Size()
	dc, err := r.DevComm(r.ctx, doorbell.Needs{Contexts: 2, Signals: 1 + n})
	if err != nil {
		return err
	}
	defer dc.Close()
	both, err := r.Alloc(part * (1 + 2*n))
	if err != nil {
		return err
	}
	defer both.Free()
	send, err := both.Slice(0, part)
	r.must(err)
	recv, err := both.Slice(part, 2*part*n)
	r.must(err)
	fillPattern(send.Bytes(), r.Rank())
	from, err := r.Register(r.ctx, send)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := r.Register(r.ctx, recv)
	if err != nil {
		return err
	}
	defer to.Close()
	// Signal p is raised by rank p's puts, the last one by stores.
	status := gin.OK
	st := r.Stream()
	defer st.Close()
	err = doorbell.Launch(st, kernel("puts among", func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 1), gin.World(&d)
		at := uint64(part * d.Rank)
		for p := range d.Ranks {
			in := slices.Contains(set, int(p))
			s := c.Put(co, world, p, to.Device(), at, from.Device(), 0, part, gin.StrongInc(d.Rank))
			if status == gin.OK && in {
				status = s
			}
			if !in && s != gin.PeerLost && s != gin.Invalid {
				panic(fmt.Sprintf("a put to rank %d, which is out: %v", p, s))
			}
			if q := gin.LSARank(&d, p); q >= 0 {
				s = c.LSAPut(co, q, to.Device(), uint64(part)*uint64(d.Ranks)+at, from.Device().Base, part)
				if in {
					ok(s, "store")
				} else {
					expect(s, gin.Invalid, "store to rank %d, which is out", p)
				}
				ok(c.LSASignal(co, q, d.Ranks, 1), "LSA signal")
			}
		}
		near := uint64(0)
		for _, q := range set {
			p := int32(q)
			if gin.LSARank(&d, p) >= 0 {
				near++
			}
			s := c.WaitSignal(co, p, 1, 64, gin.FromTeam(world))
			if status == gin.OK {
				status = s
			}
		}
		if s := c.WaitSignal(co, d.Ranks, near, 64, gin.FromTeam(world)); status == gin.OK {
			status = s
		}
	}), one, struct{}{})
	if err := errors.Join(err, st.Wait(r.ctx)); err != nil {
		return err
	}
	if status != gin.OK {
		return errors.Join(fmt.Errorf("puts among %v: %v", set, status), r.Barrier(r.ctx))
	}
	if err := r.Barrier(r.ctx); err != nil {
		return err
	}
	for p := range n {
		want := make([]byte, part)
		if slices.Contains(set, p) {
			fillPattern(want, p)
		}
		if got := recv.Bytes()[part*p : part*(p+1)]; !slices.Equal(got, want) {
			r.fail("rank %d put %x, want %x", p, got, want)
		}
		if p/r.LSASize() != r.Rank()/r.LSASize() {
			continue
		}
		if got := recv.Bytes()[part*(n+p) : part*(n+p+1)]; !slices.Equal(got, want) {
			r.fail("rank %d stored %x, want %x", p, got, want)
		}
	}
	return r.Barrier(r.ctx) // nobody's memory goes before all have been served
}

func (r *rank) survivors(want ...int) {
	r.Helper()
	set, err := r.Survivors(r.ctx)
	r.must(err)
	if !slices.Equal(set, want) {
		r.fail("survivors %v, want %v", set, want)
	}
}

// Survivors make windows and device communicators, and move data by puts and by stores, one loss after another.
func TestSurvivors(t *testing.T) {
	for _, w := range []world{
		{ranks: 4, perNode: 2}, {ranks: 5}, {ranks: 3, perNode: 1, progress: "thread"},
		{ranks: 4, perNode: 2, backend: "gdaki"}, {ranks: 3, perNode: 1, progress: "thread", backend: "gdaki"},
	} {
		t.Run(w.String(), func(t *testing.T) {
			cs := local(t, w.ranks, doorbell.Options{RanksPerNode: w.perNode, Progress: w.progress, Backend: w.backend})
			each(t, cs, func(r *rank) { r.must(putsAmong(r, all(w.ranks))) })
			for victim := range w.ranks - 1 {
				if victim%2 == 0 {
					cs[victim].Kill()
				} else if err := cs[victim].Close(); err != nil {
					t.Fatal(err)
				}
				left := all(w.ranks)[victim+1:]
				each(t, cs[victim+1:], func(r *rank) {
					r.survivors(left...)
					r.must(putsAmong(r, left))
					r.must(r.Reserve(r.ctx, 1))
					if lost := r.Lost(); len(lost) != victim+1 {
						r.fail("lost are %v", lost)
					}
				})
			}
		})
	}
}

// A rank that the others take for dead lives and writes on, by puts and by stores. Nothing of it comes into the memory that
// the survivors have made since, and it is told that it has no part any more.
func TestSurvivorsOfOneThatLives(t *testing.T) {
	for how, end := range map[string]func(cs []*doorbell.Comm) error{
		"killed":   func(cs []*doorbell.Comm) error { cs[2].Kill(); return nil },
		"expelled": func(cs []*doorbell.Comm) error { return cs[1].Expel(2, errTest) },
	} {
		for _, backend := range []string{"proxy", "gdaki"} {
			t.Run(how+" "+backend, func(t *testing.T) { survivorsOfOneThatLives(t, backend, end) })
		}
	}
}

func survivorsOfOneThatLives(t *testing.T, backend string, end func(cs []*doorbell.Comm) error) {
	cs := local(t, 3, doorbell.Options{Backend: backend})
	var over atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer over.Store(true)
	var ready, agreed sync.WaitGroup
	ready.Add(2)
	agreed.Add(2)
	each(t, cs, func(r *rank) {
		const bytes = 4096
		dc, old, send := r.devComm(doorbell.Needs{Signals: 1}), r.window(bytes), r.window(bytes)
		fill(send.Buffer().Bytes(), canary)
		if r.Rank() != 2 {
			done := sync.OnceFunc(agreed.Done)
			defer done()
			ready.Done()
			if r.Barrier(r.ctx) == nil {
				r.fail("a barrier with rank 2, which does not call")
			}
			r.survivors(0, 1)
			done()
			for range 50 {
				r.must(putsAmong(r, []int{0, 1}))
			}
			return
		}
		ready.Wait()
		r.must(end(cs))
		if _, err := r.Survivors(r.ctx); err == nil {
			r.fail("it has a part in the agreement of the others")
		}
		agreed.Wait()
		wg.Go(func() {
			st := r.Stream()
			err := doorbell.Launch(st, kernel("undead", func(t gpu.Thread) {
				d, co := dc.Device(), gin.ByThread(t)
				c := gin.Open(&d, 0)
				for !over.Load() {
					for p := range int32(2) {
						c.LSAPut(co, p, old.Device(), 0, send.Device().Base, bytes/2)
						c.LSASignal(co, p, 0, 1)
						c.Put(co, gin.World(&d), p, old.Device(), bytes/2, send.Device(), 0, bytes/2, gin.StrongInc(0))
					}
				}
			}), one, struct{}{})
			if err := errors.Join(err, st.Wait(t.Context())); err != nil {
				t.Error(err)
			}
		})
	})
}

// Ranks are killed at random moments of making, using and agreeing. The others call Survivors whenever something fails; in
// the end they have worked among themselves, all with the same set.
func TestSurvivorsAtRandomMoments(t *testing.T) {
	rounds := 6
	if testenv.Long() {
		rounds = 200
	}
	rnd := testenv.Random(t)
	for round := range rounds {
		n := 2 + rnd.IntN(4)
		doomed := rnd.Perm(n)[:rnd.IntN(n)]
		delay := make([]time.Duration, n)
		for _, r := range doomed {
			delay[r] = time.Duration(1+rnd.IntN(20_000)) * time.Microsecond
		}
		cs := local(t, n, doorbell.Options{RanksPerNode: []int{n, 1}[rnd.IntN(2)], Backend: []string{"proxy", "gdaki"}[round%2]})
		ends := make([][]int, n)
		each(t, cs, func(r *rank) {
			if d := delay[r.Rank()]; d > 0 {
				defer time.AfterFunc(d, func() { r.Kill(); r.Abort(errTest) }).Stop() // what it does in this process ends with it
			}
			set := all(n)
			for i := 0; ; {
				err := putsAmong(r, set)
				if err == nil {
					if i++; i >= 5 && len(set) == n-len(doomed) {
						ends[r.Rank()] = set
						return
					}
					continue
				}
				if set, err = r.Survivors(r.ctx); err != nil {
					if !slices.Contains(doomed, r.Rank()) {
						r.fail("survivors: %v", err)
					}
					return
				}
				i = 0
			}
		})
		for r, set := range ends {
			want := slices.DeleteFunc(all(n), func(q int) bool { return slices.Contains(doomed, q) })
			if set != nil && !slices.Equal(set, want) || set == nil && slices.Contains(want, r) {
				t.Errorf("%d ranks, %v died: rank %d ended with %v", n, doomed, r, set)
			}
		}
	}
}

// Processes are killed at random moments; the others go on among themselves, over each network.
func TestSurvivorsOfProcesses(t *testing.T) {
	rnd := testenv.Random(t)
	for _, over := range []struct{ network, backend string }{{"shm", "proxy"}, {"tcp", "proxy"}, {"shm", "gdaki"}, {"tcp", "gdaki"}} {
		t.Run(over.network+" "+over.backend, func(t *testing.T) {
			const n = 4
			cs := startJob(t, "survivors", n, all(n), "DOORBELL_NET="+over.network, env.Backend.Name()+"="+over.backend)
			for _, c := range cs {
				c.mark("at work")
			}
			doomed := rnd.Perm(n)[:1+rnd.IntN(n-1)]
			for _, r := range doomed {
				time.Sleep(time.Duration(rnd.IntN(30)) * time.Millisecond) // sleep: the moment is to be any
				cs[r].signal(syscall.SIGKILL)
			}
			for _, step := range []func(c *child){
				(*child).tell, // to end when all are
				func(c *child) { c.mark(fmt.Sprint("with ", n-len(doomed))) },
				(*child).tell,
				(*child).done,
			} {
				for r, c := range cs {
					if !slices.Contains(doomed, r) {
						step(c)
					}
				}
			}
		})
	}
}

func childSurvivors(r *rank) {
	var told atomic.Bool
	go func() {
		r.hear()
		told.Store(true)
	}()
	set := all(r.Size())
	for i := 0; ; i++ {
		if i == 1 {
			mark("at work")
		}
		over, err := r.endTogether(set, told.Load())
		if over {
			break
		}
		if err != nil {
			r.Logf("with %v: %v", set, err)
			set, err = r.Survivors(r.ctx)
			r.must(err)
		}
	}
	mark(fmt.Sprint("with ", len(set)))
	r.hear()
}

// endTogether is putsAmong, and whether all of the set are told to end.
func (r *rank) endTogether(set []int, told bool) (over bool, err error) {
	if err := putsAmong(r, set); err != nil {
		return false, err
	}
	flags, err := r.AllGather(r.ctx, strconv.AppendBool(nil, told))
	if err != nil {
		return false, err
	}
	for _, p := range set {
		if string(flags[p]) != "true" {
			return false, nil
		}
	}
	return true, nil
}
