// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// sharedFiles are the names in /dev/shm that could be ours.
func sharedFiles() (names []string) {
	list, _ := os.ReadDir("/dev/shm")
	for _, e := range list {
		if strings.Contains(e.Name(), "doorbell") {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestProcesses runs every operation in jobs of processes.
func TestProcesses(t *testing.T) {
	before := sharedFiles()
	for _, w := range []world{{ranks: 2}, {ranks: 2, progress: "thread"}, {ranks: 4, perNode: 2}, {ranks: 2, backend: "gdaki"}} {
		t.Run(w.String(), func(t *testing.T) {
			environ := []string{"DOORBELL_PROGRESS=" + w.progress}
			if w.backend != "" {
				environ = append(environ, "DOORBELL_GIN_BACKEND="+w.backend)
			}
			if w.perNode > 0 {
				environ = append(environ, "DOORBELL_RANKS_PER_NODE=2")
			}
			for _, c := range startJob(t, "programs", w.ranks, all(w.ranks), environ...) {
				c.done()
			}
		})
	}
	if after := sharedFiles(); !slices.Equal(before, after) {
		t.Errorf("/dev/shm has %v, before: %v", after, before)
	}
}

func childPrograms(r *rank) {
	for _, p := range programs {
		start := time.Now()
		p.run(r)
		r.sync()
		r.Logf("%s took %v", p.name, time.Since(start))
	}
	if r.Size() == 2 {
		progRounds(r)
	}
}

// TestKilled kills a rank with SIGKILL while it puts. Each wait of the others for it ends with PeerLost, soon and with
// the reason; among themselves they go on, and they close cleanly.
func TestKilled(t *testing.T) {
	cs := startJob(t, "killed", 3, all(3))
	cs[0].mark("hit")
	cs[1].mark("hit")
	cs[2].signal(syscall.SIGKILL)
	cs[0].mark("seen")
	cs[1].mark("seen")
	cs[0].tell()
	cs[1].tell()
	cs[0].done()
	cs[1].done()
	<-cs[2].ended
	if strings.Contains(cs[2].text(), "FAIL") {
		t.Error("the killed rank had failed before")
	}
}

func childKilled(r *rank) {
	const bytes = 1 << 20
	dc := r.devComm(doorbell.Needs{Contexts: 2, Signals: 2, Counters: 1, Barriers: 1})
	recv, send := r.window(bytes), r.window(bytes)
	r.sync()
	if r.Rank() == 2 {
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 0), gin.World(&d)
			for {
				for p := range int32(2) {
					ok(c.Put(co, world, p, recv.Device(), 0, send.Device(), 0, bytes, gin.StrongInc(0)), "put")
				}
			}
		})
	}
	r.run(func(t gpu.Thread) {
		d := dc.Device()
		c := gin.Open(&d, 0)
		ok(c.WaitSignal(gin.ByThread(t), 0, 3, 64, gin.FromPeer(gin.World(&d), 2)), "wait for puts")
	})
	mark("hit")
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 1), gin.World(&d)
		start := t.Clock()
		expect(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, 2)), gin.PeerLost, "wait for the killed rank")
		if took := time.Duration(t.Clock() - start); took > 2*time.Second {
			panic("it took " + took.String())
		}
		expect(c.WaitSignal(co, 0, 1, 64, gin.FromTeam(world)), gin.PeerLost, "wait for a team with it")
		expect(c.WaitCounter(co, 0, 1, 64, gin.FromPeer(world, 2)), gin.PeerLost, "counter")
		expect(c.LSABarrier(co, 0), gin.PeerLost, "LSA barrier")
		for {
			// The proxy marks its queues a moment after the waits.
			s := c.Put(co, world, 2, recv.Device(), 0, send.Device(), 0, bytes, gin.StrongInc(0))
			if s == gin.PeerLost {
				break
			}
			ok(s, "put to the killed rank")
		}
		expect(c.PutValue(co, world, 2, recv.Device(), 0, 1, 8, gin.None()), gin.PeerLost, "value to the killed rank")
		expect(c.Barrier(co, world, 0, gin.FencePut), gin.PeerLost, "barrier")
		peer := 1 - world.Rank
		for i := range uint64(200) {
			ok(c.Put(co, world, peer, recv.Device(), 0, send.Device(), 0, 5000, gin.StrongInc(1)), "put among the others")
			ok(c.WaitSignal(co, 1, i+1, 64, gin.FromPeer(world, peer)), "wait among the others")
		}
		ok(c.FlushPeer(co, world, peer), "flush among the others")
		c.SetTimeout(1e6)
		expect(c.WaitSignal(co, 0, 1, 64, gin.FromAny()), gin.Timeout, "wait for anybody")
	})
	lost := r.Lost()
	if len(lost) != 1 || lost[2] == nil {
		r.fail("lost are %v", lost)
	}
	var cause *doorbell.Cause
	if err := dc.Cause(); !errors.As(err, &cause) || cause.Peer != 2 || cause.Status != gin.PeerLost || !errors.Is(err, lost[2]) {
		r.fail("cause is %v", err)
	}
	says(r, cause, "cause", "PeerLost", "rank 2")
	if s := cause.Error(); !strings.Contains(s, "without goodbye") && !strings.Contains(s, "other ranks saw its end") {
		r.fail("cause is %v: it does not say who saw what", cause) // its end was seen here, or others were sooner
	}
	says(r, r.Barrier(r.ctx), "host barrier", "rank 2 is lost")
	_, err := r.Register(r.ctx, recv.Buffer())
	says(r, err, "register", "rank 2 is lost")
	mark("seen")
	r.hear() // who closes is seen to leave
}

// TestStopped stops a rank with SIGSTOP: a wait for it ends with Timeout, and a log line names it; when it goes on, the
// same wait is OK.
func TestStopped(t *testing.T) {
	cs := startJob(t, "stopped", 2, all(2))
	cs[0].mark("ready")
	cs[1].mark("ready")
	cs[1].stop()
	cs[0].tell()
	cs[0].mark("timed out")
	time.Sleep(1100 * time.Millisecond) // sleep: longer than a producer may be silent
	cs[1].signal(syscall.SIGCONT)
	cs[0].done()
	cs[1].done()
	for _, s := range []string{"a wait of a kernel timed out", "peer=1", `for="wait for signal"`, "seen=0"} {
		if !strings.Contains(cs[0].text(), s) {
			t.Errorf("no log line says %q", s)
		}
	}
}

func childStopped(r *rank) {
	dc := r.devComm(doorbell.Needs{Signals: 1, Barriers: 1})
	r.sync()
	mark("ready")
	if r.Rank() == 1 {
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 0), gin.World(&d)
			ok(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, 0)), "wait")
			ok(c.Signal(co, world, 0, gin.StrongInc(0)), "answer")
			ok(c.Barrier(co, world, 0, gin.FencePut), "barrier")
		})
		r.sync()
		return
	}
	r.hear()
	wait := func(timeout time.Duration, want gin.Status) {
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			d.Timeout = uint64(timeout)
			c, world := gin.Open(&d, 0), gin.World(&d)
			if want != gin.OK {
				ok(c.Signal(co, world, 1, gin.StrongInc(0)), "signal")
			}
			expect(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, 1)), want, "wait for the stopped rank")
			expect(c.Barrier(co, world, 0, gin.FencePut), want, "barrier")
		})
	}
	wait(300*time.Millisecond, gin.Timeout)
	if err := dc.Cause(); err != nil || len(r.Lost()) > 0 {
		r.fail("a timeout stuck: %v, lost %v", err, r.Lost())
	}
	mark("timed out")
	wait(testBound, gin.OK)
	r.sync()
}

// TestNeverComes has a rank that does not start: the others end by the deadline and name it.
func TestNeverComes(t *testing.T) {
	noProcesses(t)
	cs := startJob(t, "open", 3, []int{0, 2}, "DOORBELL_TIMEOUT=700ms")
	for _, c := range []*child{cs[0], cs[2]} {
		<-c.ended
		if c.err == nil || !strings.Contains(c.text(), "rank 1 (of 3)") || !strings.Contains(c.text(), "not there") {
			t.Errorf("rank %d ended with %v:\n%s", c.rank, c.err, c.text())
		}
	}
}

// TestLeaves has a rank close and end while others wait for it: PeerLost, with the reason. What it had posted arrives.
func TestLeaves(t *testing.T) {
	for _, c := range startJob(t, "leaves", 2, all(2)) {
		c.done()
	}
	each(t, local(t, 2, doorbell.Options{}), childLeaves)
}

func childLeaves(r *rank) {
	dc := r.devComm(doorbell.Needs{Signals: 2})
	recv, send := r.window(100000), r.window(100000)
	fillPattern(send.Buffer().Bytes(), r.Rank())
	r.sync()
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		if r.Rank() == 1 {
			for i := range uint64(100) {
				ok(c.Put(co, world, 0, recv.Device(), i*1000, send.Device(), i*1000, 1000, gin.StrongInc(0)), "put")
			}
			return
		}
		ok(c.WaitSignal(co, 0, 100, 64, gin.FromPeer(world, 1)), "what had been posted")
		expect(c.WaitSignal(co, 1, 1, 64, gin.FromPeer(world, 1)), gin.PeerLost, "what was not")
		same(view(recv.Device(), 0, 100000), fillPattern(make([]byte, 100000), 1), "what had been posted")
	})
	if r.Rank() == 1 {
		r.must(r.Close())
		return
	}
	says(r, dc.Cause(), "cause", "PeerLost", "rank 1", "has left")
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	err := r.Barrier(ctx)
	if says(r, err, "host barrier", "rank 1 has departed"); !errors.Is(err, doorbell.ErrPeerLost) {
		r.fail("host barrier: %v", err)
	}
}
