// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"context"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

type zArgs struct {
	DC   gin.DevComm
	W    gin.Window
	N    uint64
	Mode int32
}

func zself(t gpu.Thread, a zArgs) {
	c := gin.Open(&a.DC, 0)
	co := gin.ByThread(t)
	w := gin.World(&a.DC)
	for i := range a.N {
		switch a.Mode {
		case 0:
			c.Put(co, w, 0, a.W, 64, a.W, 0, 8, gin.SignalInc(0))
			c.WaitSignal(co, 0, i+1, 64, gin.FromPeer(w, 0))
		case 1:
			c.Put(co, w, 0, a.W, 64, a.W, 0, 8, gin.None())
		case 2:
			c.LSAPut(co, 0, a.W, 64, a.W.Base, 8)
			c.LSASignal(co, 0, 0, 1)
			c.WaitSignal(co, 0, i+1, 64, gin.FromPeer(w, 0))
		case 3:
			t.Clock()
		}
	}
	c.ResetSignal(co, 0)
}

var zKernel = gpu.NewKernel("z", zself, "")

func BenchmarkSelf(b *testing.B) {
	cs, err := doorbell.Local(1)
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	c := cs[0]
	buf, _ := c.Alloc(8192)
	w, err := c.Register(ctx, buf)
	if err != nil {
		b.Fatal(err)
	}
	dc, err := c.DevComm(ctx, doorbell.Needs{Signals: 1})
	if err != nil {
		b.Fatal(err)
	}
	st := c.Stream()
	for m, name := range []string{"putsignalwait", "put", "lsa", "clock"} {
		b.Run(name, func(b *testing.B) {
			doorbell.Launch(st, zKernel, doorbell.Grid{Blocks: 1, Warps: 1}, zArgs{dc.Device(), w.Device(), uint64(b.N), int32(m)})
			st.Wait(ctx)
		})
	}
	c.Close()
}
