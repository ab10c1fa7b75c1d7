// SPDX-License-Identifier: Apache-2.0

package gin_test

import (
	"fmt"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// BenchmarkSignal is a round trip of 8 bytes with a strong signal, a weak one, and each at an address.
func BenchmarkSignal(b *testing.B) {
	for _, kind := range []string{"strong", "weak", "strong at address", "weak at address"} {
		b.Run(kind, func(b *testing.B) {
			p := newPair(b, 2, doorbell.Needs{Signals: 1}, 8)
			var windows [2]gin.SignalWindow
			p.each(b, func(c *doorbell.Comm) error {
				w, err := c.RegisterSignals(b.Context(), 1)
				if err == nil {
					windows[c.Rank()] = w.Device()
				}
				return err
			})
			b.ResetTimer()
			p.run(b, func(t gpu.Thread, c *gin.Context, d *gin.DevComm, rank int) {
				co, world, peer := gin.ByThread(t), gin.World(d), int32(1-rank)
				from, w := gin.FromPeer(world, peer), windows[rank]
				act := map[string]gin.Action{"strong": gin.StrongInc(0), "weak": gin.WeakInc(0), "strong at address": gin.StrongIncAt(w, 0), "weak at address": gin.WeakIncAt(w, 0)}[kind]
				at := kind[len(kind)-1] == 's'
				wait := func(v uint64) {
					if at {
						must(c.WaitSignalAt(co, w, 0, v, 64, from), "wait")
					} else {
						must(c.WaitSignal(co, 0, v, 64, from), "wait")
					}
				}
				for i := range uint64(b.N) {
					if rank == 1 {
						wait(i + 1)
					}
					must(c.Put(co, world, peer, p.recv[rank].Device(), 0, p.send[rank].Device(), 0, 8, act), "put")
					if rank == 0 {
						wait(i + 1)
					}
				}
			})
		})
	}
}

// BenchmarkGet is a get of 8 bytes and its flush: what a round trip of puts does, by one side.
func BenchmarkGet(b *testing.B) {
	for _, bytes := range []uint64{8, 4096} {
		b.Run(fmt.Sprintf("%dB", bytes), func(b *testing.B) {
			p := newPair(b, 2, doorbell.Needs{Signals: 1}, int(bytes))
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			b.ResetTimer()
			p.run(b, func(t gpu.Thread, c *gin.Context, d *gin.DevComm, rank int) {
				co, world := gin.ByThread(t), gin.World(d)
				if rank == 1 {
					must(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, 0)), "wait")
					return
				}
				for range b.N {
					must(c.Get(co, world, 1, p.send[0].Device(), 0, p.recv[0].Device(), 0, bytes, gin.None()), "get")
					must(c.FlushPeer(co, world, 1), "flush")
				}
				must(c.Signal(co, world, 1, gin.StrongInc(0)), "signal")
			})
		})
	}
}

// BenchmarkIdleQueues is puts of 8 bytes by one context while so many queues of the same rank are idle.
func BenchmarkIdleQueues(b *testing.B) {
	for _, queues := range []int{4, 16, 64, 256, 512, 1024, 2048, 4096} {
		b.Run(fmt.Sprint(queues), func(b *testing.B) {
			const ranks = 2
			needs := doorbell.Needs{Contexts: min(queues/ranks, 1024), Signals: 1, QueueDepth: 64}
			p := newPair(b, ranks, needs, 8)
			p.each(b, func(c *doorbell.Comm) (err error) {
				for n := ranks * needs.Contexts; n < queues && err == nil; n += ranks * needs.Contexts {
					_, err = c.DevComm(b.Context(), needs)
				}
				return err
			})
			b.ResetTimer()
			p.run(b, func(t gpu.Thread, c *gin.Context, d *gin.DevComm, rank int) {
				co, world := gin.ByThread(t), gin.World(d)
				switch rank {
				case 0:
					for range b.N {
						must(c.Put(co, world, 1, p.recv[0].Device(), 0, p.send[0].Device(), 0, 8, gin.StrongInc(0)), "put")
					}
					must(c.Flush(co), "flush")
				case 1:
					must(c.WaitSignal(co, 0, uint64(b.N), 64, gin.FromPeer(world, 0)), "wait")
				}
			})
		})
	}
}
