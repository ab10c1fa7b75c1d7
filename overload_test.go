// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

var overloadFor = flag.Duration("overload", 0, "how long TestOverload runs; 0: some seconds, a minute with DOORBELL_LONG=1")

// overloadEnv tells a child how long it goes on.
const overloadEnv = "TEST_OVERLOAD"

// TestOverload has four ranks exchange over tcp for a time on a machine that has four times as much to do as cores,
// while each of them collects garbage all the time. They are slow; nobody is lost, no wait ends but well, every byte and
// signal is right.
func TestOverload(t *testing.T) {
	noProcesses(t)
	long := 3 * time.Second
	if testenv.Long() {
		long = time.Minute
	}
	if *overloadFor > 0 {
		long = *overloadFor
	}
	for range 4 * runtime.NumCPU() {
		busy := exec.Command("sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			t.Skip("needs sh for busy processes: ", err)
		}
		t.Cleanup(func() {
			busy.Process.Kill()
			busy.Wait()
		})
	}
	cs := startJob(t, "overload", 4, all(4), fmt.Sprint(overloadEnv, "=", long), "DOORBELL_NET=tcp", "DOORBELL_TIMEOUT=60s")
	bound := time.After(long + 3*testBound)
	for _, c := range cs {
		select {
		case <-c.ended:
		case <-bound:
			t.Fatalf("rank %d does not end", c.rank)
		}
		c.done()
		for line := range strings.Lines(c.text()) {
			if _, said, ok := strings.Cut(line, "overload: "); ok {
				t.Logf("rank %d: %s", c.rank, strings.TrimSpace(said))
			}
		}
	}
}

// garbage keeps the collector busy until stop.
func garbage(stop *atomic.Bool) {
	var keep [][]byte
	for !stop.Load() {
		if keep = append(keep, make([]byte, 64<<10)); len(keep) > 200 {
			keep = nil
			runtime.GC()
		}
	}
}

func childOverload(r *rank) {
	const bytes = 4096
	long, err := time.ParseDuration(os.Getenv(overloadEnv))
	r.must(err)
	n := r.Size()
	dc := r.devComm(doorbell.Needs{Signals: n}) // one of each source: a sum would not tell a late one from an early one
	recv, send := r.window(2*n*bytes), r.window(2*bytes)
	r.sync()
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	wg.Go(func() { garbage(&stop) })
	var collected runtime.MemStats
	st := r.Stream()
	start := time.Now()
	var longest time.Duration
	round, last := 0, false
	for !last {
		began := time.Now()
		over := r.Rank() == 0 && time.Since(start) > long // rank 0's word, in what it sends
		r.must(doorbell.Launch(st, kernel("exchange", func(t gpu.Thread) { last = exchange(t, dc, recv, send, round, n, bytes, over) }), one, struct{}{}))
		ctx, cancel := context.WithTimeout(context.Background(), testBound)
		r.must(st.Wait(ctx))
		cancel()
		longest = max(longest, time.Since(began))
		round++
	}
	runtime.ReadMemStats(&collected)
	if lost := r.Lost(); len(lost) > 0 || dc.Cause() != nil {
		r.fail("lost %v, cause %v", lost, dc.Cause())
	}
	fmt.Printf("overload: %.0f s, %d rounds, the longest %v, %d collections, longest pause of the last ones %v\n",
		time.Since(start).Seconds(), round, longest.Round(time.Millisecond), collected.NumGC, longestPause(&collected))
	ctx, cancel := context.WithTimeout(context.Background(), testBound)
	defer cancel()
	r.must(r.Barrier(ctx)) // who closes is seen to leave
}

func longestPause(m *runtime.MemStats) (p time.Duration) {
	for _, ns := range m.PauseNs {
		p = max(p, time.Duration(ns))
	}
	return p
}

// exchange puts a round's bytes to every rank and compares those of all. Halves are used in turn: who is in a round has
// compared the one before. It returns whether rank 0 says that this is the last one.
func exchange(t gpu.Thread, dc *doorbell.DevComm, recv, send *doorbell.Window, round, n, bytes int, over bool) bool {
	d, co := dc.Device(), gin.ByThread(t)
	c, world := gin.Open(&d, 0), gin.World(&d)
	me, half := int(world.Rank), round%2
	mine := view(send.Device(), half*bytes, bytes)
	for i := range mine {
		mine[i] = pattern(me+round, i)
	}
	mine[0] = 0
	if over {
		mine[0] = 1
	}
	for p := range world.Ranks {
		ok(c.Put(co, world, p, recv.Device(), uint64((half*n+me)*bytes), send.Device(), uint64(half*bytes), uint64(bytes), gin.StrongInc(world.Rank)), "put to %d", p)
	}
	for p := range world.Ranks {
		ok(c.WaitSignal(co, p, uint64(round+1), 64, gin.FromPeer(world, p)), "wait for round %d of %d", round, p)
	}
	ok(c.Flush(co), "flush of round %d", round)
	last := false
	want := make([]byte, bytes)
	for p := range n {
		got := view(recv.Device(), (half*n+p)*bytes, bytes)
		for i := range want {
			want[i] = pattern(p+round, i)
		}
		want[0] = got[0]
		same(got, want, "round %d of rank %d", round, p)
		if got[0] > 1 || got[0] == 1 && p != 0 {
			panic(fmt.Sprintf("round %d of rank %d begins with %d", round, p, got[0]))
		}
		last = last || got[0] == 1
	}
	return last
}
