// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"errors"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
)

// A put to a rank that takes its memory away, as one does that was expelled and heard of it first, is to a rank that is lost,
// also where this rank is yet to be told.
func TestPutToOneThatIsGone(t *testing.T) {
	// Only the network of this rank says that the other one has closed.
	closes := func(c, other *doorbell.Comm, _ *doorbell.DevComm) error {
		return errors.Join(c.Deaf(t.Context()), other.Close())
	}
	for _, p := range []struct{ net, far string }{{"ce", "1"}, {"tcp", "0"}, {"staged+tcp", "1"}} {
		for _, backend := range []string{"proxy", "gdaki"} {
			t.Run(p.net+"/"+backend, func(t *testing.T) {
				t.Setenv(env.Far.Name(), p.far)
				putToOneThatIsGone(t, doorbell.Options{Net: p.net, Backend: backend}, closes)
			})
		}
	}
	t.Run("expelled", func(t *testing.T) {
		t.Setenv(env.Far.Name(), "1")
		putToOneThatIsGone(t, doorbell.Options{Net: "ce"}, func(c, _ *doorbell.Comm, its *doorbell.DevComm) error {
			return errors.Join(c.Expel(1, errTest), its.Close())
		})
	})
}

// putToOneThatIsGone has rank 0 put to rank 1 while that one goes, and keeps rank 0 from hearing of it.
func putToOneThatIsGone(t *testing.T, o doorbell.Options, goes func(c, other *doorbell.Comm, its *doorbell.DevComm) error) {
	cs := local(t, 3, o)
	its := make(chan *doorbell.DevComm, 1)
	each(t, cs, func(r *rank) {
		dc, w := r.devComm(doorbell.Needs{Signals: 1}), r.window(64)
		for range 60 { // so that closing takes its time
			r.window(64)
		}
		if r.Rank() == 1 {
			its <- dc
		}
		if err := r.Barrier(r.ctx); r.Rank() != 0 {
			return // also where rank 0 was through first, and has expelled one
		} else {
			r.must(err)
		}
		busy, over := make(chan struct{}), make(chan struct{})
		defer close(over)
		r.OnLost(func(rank int, _ error) {
			if rank == 2 {
				close(busy)
				<-over
			}
		})
		r.must(r.Expel(2, errTest))
		<-busy
		r.start(one, func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 0), gin.World(&d)
			s := gin.OK
			for s == gin.OK {
				if s = c.Put(co, world, 1, w.Device(), 0, w.Device(), 32, 8, gin.StrongInc(0)); s == gin.OK {
					s = c.FlushPeer(co, world, 1)
				}
			}
			expect(s, gin.PeerLost, "a put to rank 1")
		})
		err := goes(cs[0], cs[1], <-its)
		r.wait()
		r.must(err)
	})
}
