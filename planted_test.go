// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// plantEnv names the race that TestPlanted is to run, in a process of its own.
const plantEnv = "TEST_PLANT"

// plants are races that the detector must see, and beside each one the same without it. Rank 0 sends to rank 1.
var plants = map[string]func(r *rank, dc *doorbell.DevComm, send, recv gin.Window){
	// A source that is written after its put was posted, and before anything said that it may be.
	"window":       func(r *rank, dc *doorbell.DevComm, send, recv gin.Window) { plantWindow(r, dc, send, recv, false) },
	"window-clean": func(r *rank, dc *doorbell.DevComm, send, recv gin.Window) { plantWindow(r, dc, send, recv, true) },
	// A descriptor that is published by plain stores.
	"queue":       func(r *rank, dc *doorbell.DevComm, _, _ gin.Window) { plantQueue(r, dc, false) },
	"queue-clean": func(r *rank, dc *doorbell.DevComm, _, _ gin.Window) { plantQueue(r, dc, true) },
	// A signal's word that is read by a plain load.
	"signal":       func(r *rank, dc *doorbell.DevComm, send, recv gin.Window) { plantSignal(r, dc, send, recv, false) },
	"signal-clean": func(r *rank, dc *doorbell.DevComm, send, recv gin.Window) { plantSignal(r, dc, send, recv, true) },
}

func plantWindow(r *rank, dc *doorbell.DevComm, send, recv gin.Window, clean bool) {
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		if d.Rank == 1 {
			ok(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, 0)), "wait")
			return
		}
		ok(c.Put(co, world, 1, recv, 0, send, 0, 1000, gin.StrongInc(0)), "put")
		if clean {
			ok(c.Flush(co), "flush")
		}
		fill(view(send, 0, 1000), 1)
		linger()
	})
}

func plantQueue(r *rank, dc *doorbell.DevComm, clean bool) {
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		if d.Rank == 1 {
			ok(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, 0)), "wait")
			return
		}
		q := takeTicket(&d, 1)
		desc := abi.Desc{Op: abi.OpSignal, Version: abi.DescVersion, Flags: abi.FlagSignalInc | abi.FlagStrong}
		var w [abi.DescWords]uint64
		desc.Encode(&w, q.phase)
		// No hint is given: the sweep finds it.
		for i, v := range w {
			if clean {
				gpu.Store(q.slot.At(i), v, gpu.Release, gpu.ScopeSys)
			} else {
				q.slot.At(i).Store(v)
			}
		}
		linger()
	})
}

// linger keeps a kernel, which learns nothing meanwhile, until the timer of the process has been at its queues: nobody
// else is there to move the data. It sleeps, since the detector forgets what lies many steps back.
func linger() { time.Sleep(60 * time.Millisecond) } // sleep: a wait would tell the kernel what it must not know

// ticket is a place in a queue that a test's kernel took by itself.
type ticket struct {
	slot  gpu.Ptr[uint64]
	hint  gpu.Ptr[uint32]
	n     uint64
	phase uint64
}

func takeTicket(d *gin.DevComm, queue int) ticket {
	q := d.Queue(queue)
	n := gpu.AtomicAdd(gpu.PtrTo(&q.Prod.Raw().Ticket), 1, gpu.Relaxed, gpu.ScopeGPU)
	return ticket{q.Slots.At(int(n&q.Mask) * abi.DescWords), q.Hint, n, ((n>>q.Shift)&1 ^ 1) << 63}
}

// publish writes a descriptor's words as they are, with the phase that the reader waits for, and a hint.
func (k ticket) publish(w [abi.DescWords]uint64) {
	for i, v := range w {
		gpu.Store(k.slot.At(i), v&^abi.PhaseBit|k.phase, gpu.Release, gpu.ScopeSys)
	}
	gpu.Store(k.hint, uint32(k.n+1), gpu.Relaxed, gpu.ScopeSys)
}

func plantSignal(r *rank, dc *doorbell.DevComm, send, recv gin.Window, clean bool) {
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		if d.Rank == 0 {
			ok(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, 1)), "wait until rank 1 looks")
			ok(c.Put(co, world, 1, recv, 0, send, 0, 1000, gin.StrongInc(0)), "put")
			linger()
			return
		}
		ok(c.LSASignal(co, 0, 0, 1), "signal")
		for start := t.Clock(); t.Clock()-start < testBoundNs; time.Sleep(time.Millisecond) { // sleep: Idle would move the data itself
			if clean && c.ReadSignal(0) == 1 || !clean && d.Net.Load() == 1 {
				return
			}
		}
		panic("the signal never came")
	})
}

// TestPlanted runs one plant; TestPlantedRaces calls it in a process of its own.
func TestPlanted(t *testing.T) {
	plant := plants[os.Getenv(plantEnv)]
	if plant == nil {
		t.Skipf("%s names no plant: it is run by TestPlantedRaces", plantEnv)
	}
	each(t, local(t, 2, doorbell.Options{Progress: "assisted"}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 1})
		send, recv := r.window(1000), r.window(1000)
		plant(r, dc, send.Device(), recv.Device())
		r.sync()
	})
}

// TestPlantedRaces shows that the race detector sees what it is relied on for: a race in a window, in a queue, in a
// signal. It is blind to memory that is not of the Go heap; ranks of one process have none other.
func TestPlantedRaces(t *testing.T) {
	if !testenv.Race {
		t.Skip("this test binary is built without -race: there is no detector to see the planted races")
	}
	for name := range plants {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestPlanted$", "-test.v")
			cmd.Env = append(os.Environ(), plantEnv+"="+name, "GORACE=atexit_sleep_ms=0 history_size=7")
			out, err := cmd.CombinedOutput()
			if clean := strings.HasSuffix(name, "-clean"); clean && err != nil || !clean && err == nil {
				t.Errorf("ended with %v; a race was planted: %v\n%s", err, !clean, out)
			} else if seen := strings.Contains(string(out), "WARNING: DATA RACE"); seen == clean {
				t.Errorf("a race was reported: %v, planted: %v\n%s", seen, !clean, out)
			} else if !strings.Contains(string(out), "TestPlanted") || strings.Contains(string(out), "SKIP") {
				t.Errorf("the plant did not run:\n%s", out)
			}
		})
	}
}
