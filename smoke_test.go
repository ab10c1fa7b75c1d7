// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"context"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

type ppArgs struct {
	DC    gin.DevComm
	Send  gin.Window
	Recv  gin.Window
	Bytes uint64
	Iters uint64
	Out   gpu.Ptr[uint64]
}

func pp(t gpu.Thread, a ppArgs) {
	c := gin.Open(&a.DC, 0)
	co := gin.ByThread(t)
	w := gin.World(&a.DC)
	peer := 1 - w.Rank
	a.Out.Store(0)
	start := t.Clock()
	for i := range a.Iters {
		if w.Rank == 0 {
			if s := c.Put(co, w, peer, a.Recv, 0, a.Send, 0, a.Bytes, gin.SignalInc(0)); s != gin.OK {
				a.Out.Store(uint64(s))
				return
			}
		}
		if s := c.WaitSignal(co, 0, i+1, 64, gin.FromPeer(w, peer)); s != gin.OK {
			a.Out.Store(uint64(s))
			return
		}
		if w.Rank == 1 {
			if s := c.Put(co, w, peer, a.Recv, 0, a.Send, 0, a.Bytes, gin.SignalInc(0)); s != gin.OK {
				a.Out.Store(uint64(s))
				return
			}
		}
	}
	a.Out.At(1).Store(t.Clock() - start)
}

var ppKernel = gpu.NewKernel("pp", pp, "")

func TestSmoke(t *testing.T) {
	cs, err := doorbell.Local(2, doorbell.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	done := make(chan error, 2)
	for _, c := range cs {
		go func() {
			done <- func() error {
				b, err := c.Alloc(8192)
				if err != nil {
					return err
				}
				s, _ := b.Slice(0, 4096)
				r, _ := b.Slice(4096, 2048)
				sw, err := c.Register(ctx, s)
				if err != nil {
					return err
				}
				rw, err := c.Register(ctx, r)
				if err != nil {
					return err
				}
				dc, err := c.DevComm(ctx, doorbell.Needs{Signals: 1})
				if err != nil {
					return err
				}
				out, err := c.Alloc(64)
				if err != nil {
					return err
				}
				for i := range 100 {
					s.Bytes()[i] = byte(i + 7*c.Rank())
				}
				st := c.Stream()
				if err := doorbell.Launch(st, ppKernel, doorbell.Grid{Blocks: 1, Warps: 1}, ppArgs{dc.Device(), sw.Device(), rw.Device(), 100, 10000, gpu.Cast[uint64](out.Ptr())}); err != nil {
					return err
				}
				if err := st.Wait(ctx); err != nil {
					return err
				}
				o := gpu.Slice(gpu.Cast[uint64](out.Ptr()), 2)
				t.Logf("rank %d status %d, %d ns per round trip, cause %v", c.Rank(), o[0], o[1]/10000, dc.Cause())
				for i := range 100 {
					if r.Bytes()[i] != byte(i+7*(1-c.Rank())) {
						t.Errorf("byte %d", i)
					}
				}
				return nil
			}()
		}()
	}
	for range cs {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, c := range cs {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
