// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// fences are all levels.
var fences = []gin.Fence{gin.FenceNone, gin.FencePut, gin.FenceGet, gin.FencePut | gin.FenceGet}

// TestBarriersWaitForAll counts arrivals by the host's means: who leaves a barrier, of whatever kind, team and fence, finds
// that all of the team had arrived. Ids are used again and again, by teams and fences in turn.
func TestBarriersWaitForAll(t *testing.T) {
	epochs := 200
	if testenv.Long() {
		epochs = 400_000 // of each world: 2 million
	}
	for _, w := range []world{{ranks: 1}, {ranks: 3}, {ranks: 4, perNode: 2}, {ranks: 7}, {ranks: 8, perNode: 4}} {
		t.Run(w.String(), func(t *testing.T) {
			arrived := make([][16]atomic.Int64, w.ranks) // [lowest rank of the team][kind]
			each(t, local(t, w.ranks, doorbell.Options{RanksPerNode: w.perNode}), func(r *rank) {
				dc := r.devComm(doorbell.Needs{Barriers: 2})
				r.run(func(t gpu.Thread) {
					d, co := dc.Device(), gin.ByThread(t)
					c, world := gin.Open(&d, 0), gin.World(&d)
					n := divisor(world.Ranks)
					teams := []gin.Team{world, gin.Rail(&d), gin.LSA(&d), world.Inner(n), world.Outer(n)}
					kinds := len(teams) + 2
					for e := range epochs {
						kind, round := e%kinds, int64(e/kinds)+1
						team, id, fence := world, int32(e/3%2), fences[e/kinds%len(fences)]
						if kind < len(teams) {
							team = teams[kind]
						} else if kind == len(teams) {
							team = gin.LSA(&d)
						}
						count := &arrived[team.WorldRank(&d, 0)][kind]
						count.Add(1)
						switch kind {
						default:
							ok(c.Barrier(co, team, id, fence), "barrier %d of %+v, fence %d", e, team, fence)
						case len(teams):
							ok(c.LSABarrier(co, id), "LSA barrier %d", e)
						case len(teams) + 1:
							ok(c.HybridBarrier(co, id, fence), "hybrid barrier %d, fence %d", e, fence)
						}
						if got, want := count.Load(), round*int64(team.Ranks); got < want {
							panic(fmt.Sprintf("left barrier %d of kind %d, fence %d, when %d had arrived, want %d", e, kind, fence, got, want))
						}
					}
				})
				r.drop(dc)
			})
		})
	}
}

// progHybrid has each rank put to all, store to its LSA peers, and look into the windows of its LSA peers after: what any
// rank did before the barrier is there. Then the same with queues on the rail alone.
func progHybrid(r *rank) {
	const epochs = 100
	for _, rail := range []bool{false, true} {
		dc := r.devComm(doorbell.Needs{Barriers: 2, Rail: rail})
		recv := r.window(16 * r.Size())
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, lsa, far := gin.Open(&d, 0), gin.LSA(&d), gin.World(&d)
			if rail {
				far = gin.Rail(&d)
			}
			for e := range uint64(epochs) {
				for p := range far.Ranks {
					ok(c.PutValue(co, far, p, recv.Device(), 16*uint64(d.Rank), e+1, 8, gin.None()), "put value")
				}
				for p := range lsa.Ranks {
					gpu.Cast[uint64](gin.LSAPointer(recv.Device(), p, 16*uint64(d.Rank)+8)).Store(e + 1)
				}
				ok(c.HybridBarrier(co, int32(e)%2, gin.FencePut), "barrier %d", e)
				for p := range lsa.Ranks {
					for from := range d.Ranks {
						at := gpu.Cast[uint64](gin.LSAPointer(recv.Device(), p, 16*uint64(from)))
						to := lsa.WorldRank(&d, p)
						if put := gpu.Load(at, gpu.Relaxed, gpu.ScopeSys); put != e+1 && (!rail || from%lsa.Ranks == to%lsa.Ranks) {
							panic(fmt.Sprintf("round %d: a put of rank %d to rank %d is not there", e, from, to))
						}
						if stored := at.At(1).Load(); stored != e+1 && lsa.Contains(&d, from) {
							panic(fmt.Sprintf("round %d: a store of rank %d to rank %d is not there", e, from, to))
						}
					}
				}
				ok(c.HybridBarrier(co, int32(e)%2, gin.FenceNone), "barrier %d, end", e)
			}
		})
		r.drop(dc, recv)
	}
}

// progFenceGet puts by counters, which say when a source may be reused: after a barrier that flushes it is so.
func progFenceGet(r *rank) {
	const epochs, bytes = 20, 50_000
	dc := r.devComm(doorbell.Needs{Barriers: 1, Counters: 1})
	recv, send := r.window(bytes*r.Size()), r.window(bytes)
	r.run(func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, 0), gin.World(&d)
		for e := range uint64(epochs) {
			for p := range world.Ranks {
				ok(c.Put(co, world, p, recv.Device(), uint64(bytes*world.Rank), send.Device(), 0, bytes, gin.None().Counter(0)), "put")
			}
			ok(c.Barrier(co, world, 0, gin.FenceGet), "barrier")
			if got, want := c.ReadCounter(0), (e+1)*uint64(world.Ranks); got != want {
				panic(fmt.Sprintf("%d puts are locally complete after a barrier that flushes, want %d", got, want))
			}
		}
	})
	r.drop(dc, recv, send)
}

// TestManyBarriers has hundreds of barriers of each kind under way at once.
func TestManyBarriers(t *testing.T) {
	const blocks, each1 = 16, 20 // barriers of a kind: each block has its own
	epochs := 5
	if testenv.Long() {
		epochs = 5000
	}
	each(t, local(t, 3, doorbell.Options{}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Barriers: blocks * each1})
		r.start(doorbell.Grid{Blocks: blocks, Warps: 1, Cooperative: true}, func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			c, world := gin.Open(&d, 0), gin.World(&d)
			for e := range int32(epochs) {
				for i := range int32(each1) {
					id := t.Block()*each1 + (i+e)%each1
					ok(c.Barrier(co, world, id, fences[(id+e)%4]), "barrier %d", id)
					ok(c.LSABarrier(co, id), "LSA barrier %d", id)
				}
			}
		})
		r.wait()
		r.drop(dc)
	})
}

// TestBarrierLost has a rank in the middle leave while the others are in a barrier, of each kind: all of them hear of it,
// also ranks 4 and 6, which exchange no signal of a barrier without a fence with it.
func TestBarrierLost(t *testing.T) {
	for name, barrier := range map[string]func(c *gin.Context, co gin.Coop, d *gin.DevComm) gin.Status{
		"put": func(c *gin.Context, co gin.Coop, d *gin.DevComm) gin.Status {
			return c.Barrier(co, gin.World(d), 0, gin.FencePut)
		},
		"none": func(c *gin.Context, co gin.Coop, d *gin.DevComm) gin.Status {
			return c.Barrier(co, gin.World(d), 0, gin.FenceNone)
		},
		"LSA": func(c *gin.Context, co gin.Coop, _ *gin.DevComm) gin.Status { return c.LSABarrier(co, 0) },
		"hybrid": func(c *gin.Context, co gin.Coop, _ *gin.DevComm) gin.Status {
			return c.HybridBarrier(co, 0, gin.FencePut)
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, local(t, 8, doorbell.Options{}), func(r *rank) {
				dc := r.devComm(doorbell.Needs{Barriers: 1})
				r.sync()
				if r.Rank() == 1 {
					r.must(r.Close())
					return
				}
				r.run(func(t gpu.Thread) {
					d := dc.Device()
					c := gin.Open(&d, 0)
					expect(barrier(&c, gin.ByThread(t), &d), gin.PeerLost, "barrier")
				})
				says(r, dc.Cause(), "cause", "PeerLost", "rank 1")
			})
		})
	}
}
