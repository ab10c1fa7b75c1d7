// SPDX-License-Identifier: Apache-2.0

package gin_test

import (
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// BenchmarkPutValue is put values of one rank after another, and their end at the target.
func BenchmarkPutValue(b *testing.B) {
	p := newPair(b, 2, doorbell.Needs{Signals: 1}, 8)
	b.SetBytes(8)
	b.ReportAllocs()
	b.ResetTimer()
	p.run(b, func(t gpu.Thread, c *gin.Context, d *gin.DevComm, rank int) {
		co, world, recv := gin.ByThread(t), gin.World(d), p.recv[rank].Device()
		if rank == 1 {
			must(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, 0)), "wait")
			if got := gpu.Cast[uint64](recv.Base).Load(); got != uint64(b.N) {
				panic("the last value is not there")
			}
			return
		}
		for i := range uint64(b.N) {
			must(c.PutValue(co, world, 1, recv, 0, i+1, 8, gin.None()), "put value")
		}
		must(c.Signal(co, world, 1, gin.StrongInc(0)), "signal")
		must(c.Flush(co), "flush")
	})
}

// BenchmarkPutSelf is puts of a rank to itself through the proxy, each waited for.
func BenchmarkPutSelf(b *testing.B) {
	p := newPair(b, 1, doorbell.Needs{Signals: 1}, 8)
	b.SetBytes(8)
	b.ReportAllocs()
	b.ResetTimer()
	p.run(b, func(t gpu.Thread, c *gin.Context, d *gin.DevComm, _ int) {
		co, world := gin.ByThread(t), gin.World(d)
		recv, send := p.recv[0].Device(), p.send[0].Device()
		from, to := gpu.Cast[uint64](send.Base), gpu.Cast[uint64](recv.Base)
		for i := range uint64(b.N) {
			from.Store(i + 1)
			must(c.Put(co, world, 0, recv, 0, send, 0, 8, gin.StrongInc(0)), "put")
			must(c.WaitSignal(co, 0, i+1, 64, gin.FromPeer(world, 0)), "wait")
			if to.Load() != i+1 {
				panic("what came is not what was put")
			}
		}
	})
}
