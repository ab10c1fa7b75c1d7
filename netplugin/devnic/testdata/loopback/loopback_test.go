// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"bytes"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// TestKernel: a kernel that drives this NIC puts, gets, signals and counts.
func TestKernel(t *testing.T) {
	t.Setenv("DOORBELL_NIC", "loopback")
	cs, err := doorbell.Local(1, doorbell.Options{Backend: "gdaki", Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c := cs[0]
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if i := c.Info(); i.NIC != "loopback" || !i.Emulated {
		t.Errorf("it says of itself %+v", i)
	}
	var w [3]*doorbell.Window
	for i := range w {
		b, err := c.Alloc(4096)
		if err != nil {
			t.Fatal(err)
		}
		if w[i], err = c.Register(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	send, recv, back := w[0].Buffer().Bytes(), w[1].Buffer().Bytes(), w[2].Buffer().Bytes()
	for i := range send {
		send[i] = byte(i*7 + 1)
	}
	dc, err := c.DevComm(t.Context(), doorbell.Needs{Signals: 1, Counters: 1, QueueDepth: 4})
	if err != nil {
		t.Fatal(err)
	}
	kernel := gpu.NewKernel("loopback", func(t gpu.Thread, _ struct{}) {
		d, co := dc.Device(), gin.ByWarp(t)
		x, world := gin.Open(&d, 0), gin.World(&d)
		must := func(s gin.Status) {
			if s != gin.OK {
				panic(s)
			}
		}
		for i := range uint64(100) { // many laps of its queue
			must(x.Put(co, world, 0, w[1].Device(), 0, w[0].Device(), 0, 4000, gin.StrongInc(0).Counter(0)))
			must(x.PutValue(co, world, 0, w[1].Device(), 4088, i+1, 8, gin.StrongAdd(0, 10)))
			must(x.WaitSignal(co, 0, 11*(i+1), 64, gin.FromAny()))
			must(x.WaitCounter(co, 0, i+1, 64, gin.FromAny()))
		}
		must(x.Get(co, world, 0, w[1].Device(), 0, w[2].Device(), 0, 4096, gin.None()))
		must(x.Flush(co))
	}, "")
	st := c.Stream()
	if err := doorbell.Launch(st, kernel, doorbell.Grid{Blocks: 1, Warps: 1}, struct{}{}); err != nil {
		t.Fatal(err)
	}
	if err := st.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(recv[:4000], send[:4000]) || recv[4088] != 100 || !bytes.Equal(back, recv) {
		t.Error("what was put or got is not there")
	}
}
