// SPDX-License-Identifier: Apache-2.0

package gin_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// pair is two ranks in this process, and what each has.
type pair struct {
	comms      []*doorbell.Comm
	dc         []*doorbell.DevComm
	send, recv []*doorbell.Window
}

// newPair makes one; the test's end closes it.
func newPair(tb testing.TB, ranks int, n doorbell.Needs, bytes int) *pair {
	cs, err := doorbell.Local(ranks, doorbell.Options{Timeout: 20 * time.Second, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		for _, c := range cs {
			if err := c.Close(); err != nil {
				tb.Error(err)
			}
		}
	})
	p := &pair{comms: cs, dc: make([]*doorbell.DevComm, ranks), send: make([]*doorbell.Window, ranks), recv: make([]*doorbell.Window, ranks)}
	p.each(tb, func(c *doorbell.Comm) error {
		b, err := c.Alloc(2 * max(bytes, 8))
		if err != nil {
			return err
		}
		half, err := b.Slice(b.Len()/2, b.Len()/2)
		if err != nil {
			return err
		}
		if p.send[c.Rank()], err = c.Register(context.Background(), b); err != nil {
			return err
		}
		if p.recv[c.Rank()], err = c.Register(context.Background(), half); err != nil {
			return err
		}
		p.dc[c.Rank()], err = c.DevComm(context.Background(), n)
		return err
	})
	return p
}

func (p *pair) each(tb testing.TB, f func(c *doorbell.Comm) error) {
	tb.Helper()
	var wg sync.WaitGroup
	for _, c := range p.comms {
		wg.Go(func() {
			if err := f(c); err != nil {
				tb.Errorf("rank %d: %v", c.Rank(), err)
			}
		})
	}
	wg.Wait()
	if tb.Failed() {
		tb.FailNow()
	}
}

// run runs f as a kernel of one warp on each rank.
func (p *pair) run(tb testing.TB, f func(t gpu.Thread, c *gin.Context, d *gin.DevComm, rank int)) {
	tb.Helper()
	p.each(tb, func(c *doorbell.Comm) error {
		st := c.Stream()
		k := gpu.NewKernel(tb.Name(), func(t gpu.Thread, _ struct{}) {
			d := p.dc[c.Rank()].Device()
			ctx := gin.Open(&d, 0)
			f(t, &ctx, &d, c.Rank())
		}, "")
		if err := doorbell.Launch(st, k, doorbell.Grid{Blocks: 1, Warps: 1}, struct{}{}); err != nil {
			return err
		}
		if err := st.Wait(context.Background()); err != nil {
			return err
		}
		return st.Close()
	})
}

func must(s gin.Status, what string) {
	if s != gin.OK {
		panic(fmt.Sprintf("%s: %v", what, s))
	}
}

// BenchmarkPutWait is a round trip of a put with a signal and its wait, from rank 0 to rank 1 and back.
func BenchmarkPutWait(b *testing.B) {
	for _, bytes := range []uint64{0, 8, 64, 256, 4096} {
		for _, small := range []int{8, 256} {
			b.Run(fmt.Sprintf("%dB/small%d", bytes, small), func(b *testing.B) {
				p := newPair(b, 2, doorbell.Needs{Signals: 1, SmallPut: small}, int(bytes))
				b.SetBytes(int64(2 * bytes))
				b.ReportAllocs()
				b.ResetTimer()
				p.run(b, func(t gpu.Thread, c *gin.Context, d *gin.DevComm, rank int) {
					co, world, peer := gin.ByThread(t), gin.World(d), int32(1-rank)
					from := gin.FromPeer(world, peer)
					for i := range uint64(b.N) {
						if rank == 1 {
							must(c.WaitSignal(co, 0, i+1, 64, from), "wait")
						}
						must(c.Put(co, world, peer, p.recv[rank].Device(), 0, p.send[rank].Device(), 0, bytes, gin.StrongInc(0)), "put")
						if rank == 0 {
							must(c.WaitSignal(co, 0, i+1, 64, from), "wait")
						}
					}
				})
			})
		}
	}
}

// BenchmarkLSAPutWait is the same by stores.
func BenchmarkLSAPutWait(b *testing.B) {
	for _, bytes := range []uint64{0, 8, 4096} {
		b.Run(fmt.Sprintf("%dB", bytes), func(b *testing.B) {
			p := newPair(b, 2, doorbell.Needs{Signals: 1}, int(bytes))
			b.SetBytes(int64(2 * bytes))
			b.ReportAllocs()
			b.ResetTimer()
			p.run(b, func(t gpu.Thread, c *gin.Context, d *gin.DevComm, rank int) {
				co, world, peer := gin.ByThread(t), gin.World(d), int32(1-rank)
				from := gin.FromPeer(world, peer)
				for i := range uint64(b.N) {
					if rank == 1 {
						must(c.WaitSignal(co, 0, i+1, 64, from), "wait")
					}
					must(c.LSAPut(co, peer, p.recv[rank].Device(), 0, p.send[rank].Device().Base, bytes), "put")
					must(c.LSASignal(co, peer, 0, 1), "signal")
					if rank == 0 {
						must(c.WaitSignal(co, 0, i+1, 64, from), "wait")
					}
				}
			})
		})
	}
}

// BenchmarkPut is puts of one rank after another, as fast as they go.
func BenchmarkPut(b *testing.B) {
	for _, bytes := range []uint64{0, 8, 64, 4096} {
		b.Run(fmt.Sprintf("%dB", bytes), func(b *testing.B) {
			p := newPair(b, 2, doorbell.Needs{Signals: 1}, int(bytes))
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			b.ResetTimer()
			p.run(b, func(t gpu.Thread, c *gin.Context, d *gin.DevComm, rank int) {
				co, world := gin.ByThread(t), gin.World(d)
				if rank == 1 {
					must(c.WaitSignal(co, 0, uint64(b.N), 64, gin.FromPeer(world, 0)), "wait")
					return
				}
				for range b.N {
					must(c.Put(co, world, 1, p.recv[0].Device(), 0, p.send[0].Device(), 0, bytes, gin.StrongInc(0)), "put")
				}
				must(c.Flush(co), "flush")
			})
		})
	}
}

// BenchmarkWait is a wait for what is there.
func BenchmarkWait(b *testing.B) {
	p := newPair(b, 1, doorbell.Needs{Signals: 1}, 8)
	b.ReportAllocs()
	b.ResetTimer()
	p.run(b, func(t gpu.Thread, c *gin.Context, d *gin.DevComm, _ int) {
		for range b.N {
			must(c.WaitSignal(gin.ByThread(t), 0, 0, 64, gin.FromAny()), "wait")
		}
	})
}

// BenchmarkBarrier is barriers of a few ranks of this process.
func BenchmarkBarrier(b *testing.B) {
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
		for _, ranks := range []int{2, 4, 8} {
			b.Run(fmt.Sprintf("%s/%dranks", name, ranks), func(b *testing.B) {
				p := newPair(b, ranks, doorbell.Needs{Barriers: 1}, 8)
				b.ReportAllocs()
				b.ResetTimer()
				p.run(b, func(t gpu.Thread, c *gin.Context, d *gin.DevComm, _ int) {
					for range b.N {
						must(barrier(c, gin.ByThread(t), d), "barrier")
					}
				})
			})
		}
	}
}

// BenchmarkLLA2A is epochs of two ranks: 8 bytes of each to each.
func BenchmarkLLA2A(b *testing.B) {
	p := newPair(b, 2, doorbell.Needs{LLA2ABlocks: 1, LLA2ASlots: 2}, 8)
	b.ReportAllocs()
	b.ResetTimer()
	p.run(b, func(t gpu.Thread, c *gin.Context, d *gin.DevComm, rank int) {
		l, s := c.LLA2A(gin.ByThread(t), 0)
		must(s, "session")
		from := gin.FromTeam(gin.LSA(d))
		for i := range uint64(b.N) {
			must(l.Bcast(int32(rank), i), "broadcast")
			sum, s := gin.RecvReduce[uint64](&l, 0, 1, 2, gin.Sum, from)
			must(s, "receive")
			must(l.EndEpoch(), "end of epoch")
			if sum != 2*i {
				panic("not what was sent")
			}
		}
	})
}

// TestAllocs holds that device calls allocate nothing, nor does a launch.
func TestAllocs(t *testing.T) {
	p := newPair(t, 1, doorbell.Needs{Contexts: 2, Signals: 2, Counters: 1, Barriers: 1, SmallPut: 64, Multimem: true, LLA2ABlocks: 1, LLA2ASlots: 4}, 4096)
	recv, send := p.recv[0].Device(), p.send[0].Device()
	for name, f := range map[string]func(c *gin.Context, co gin.Coop, w gin.Team){
		"put": func(c *gin.Context, co gin.Coop, w gin.Team) {
			for _, n := range []uint64{0, 8, 40, 4096} {
				must(c.Put(co, w, 0, recv, 0, send, 0, n, gin.StrongInc(0).Counter(0)), "put")
			}
			must(c.Flush(co), "flush")
		},
		"value": func(c *gin.Context, co gin.Coop, w gin.Team) {
			must(c.PutValue(co, w, 0, recv, 0, 1, 8, gin.None()), "value")
			must(c.Flush(co), "flush") // others write to the same bytes
		},
		"signal":  func(c *gin.Context, co gin.Coop, w gin.Team) { must(c.Signal(co, w, 0, gin.StrongAdd(1, 3)), "signal") },
		"barrier": func(c *gin.Context, co gin.Coop, w gin.Team) { must(c.Barrier(co, w, 0, gin.FencePut), "barrier") },
		"LSA": func(c *gin.Context, co gin.Coop, w gin.Team) {
			must(c.LSAPut(co, 0, recv, 0, send.Base, 100), "LSA put")
			must(c.LSASignal(co, 0, 0, 1), "LSA signal")
			must(c.LSABarrier(co, 0), "LSA barrier")
		},
		"hybrid barrier": func(c *gin.Context, co gin.Coop, _ gin.Team) {
			must(c.HybridBarrier(co, 0, gin.FencePut|gin.FenceGet), "hybrid barrier")
		},
		"Multimem": func(c *gin.Context, _ gin.Coop, _ gin.Team) {
			m, s := c.Multimem(recv)
			must(s, "Multimem")
			must(gin.MultimemStore(&m, 0, uint64(7)), "store")
			v, s := gin.MultimemReduce[uint64](&m, 0, gin.Sum)
			must(s, "reduce")
			f, s := gin.MultimemReduceFloat[gin.F16](&m, 0, gin.Max)
			must(s, "reduce floats")
			if v != 7 || f != 7 {
				panic("not what was stored")
			}
		},
		"LLA2A": func(c *gin.Context, co gin.Coop, w gin.Team) {
			l, s := c.LLA2A(co, 0)
			must(s, "session")
			must(l.SendFrom(0, 0, send.Base, 20), "send")
			must(l.RecvInto(0, recv.Base, 20, gin.FromTeam(w)), "receive")
			must(l.Bcast(3, 1), "broadcast")
			_, s = gin.RecvReduce[int64](&l, 3, 1, 1, gin.Sum, gin.FromTeam(w))
			must(s, "reduce")
			must(l.EndEpoch(), "end of epoch")
		},
		"wait and reset": func(c *gin.Context, co gin.Coop, w gin.Team) {
			must(c.Signal(co, w, 0, gin.StrongInc(1).Counter(0)), "signal")
			must(c.Flush(co), "flush")
			must(c.WaitSignal(co, 1, 1, 64, gin.FromTeam(w)), "wait")
			must(c.WaitCounter(co, 0, 1, 64, gin.FromPeer(w, 0)), "counter")
			must(c.ResetSignal(co, 1), "reset")
			must(c.ResetCounter(co, 0), "reset")
		},
		"timeout": func(c *gin.Context, co gin.Coop, w gin.Team) {
			c.SetTimeout(1000)
			if s := c.WaitSignal(co, 0, 1<<60, 64, gin.FromTeam(w)); s != gin.Timeout {
				panic(s)
			}
		},
		"refusal": func(c *gin.Context, co gin.Coop, w gin.Team) {
			if s := c.Put(co, w, 0, recv, 1<<63, send, 0, 8, gin.None()); s != gin.Invalid {
				panic(s)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			allocs := -1.0
			p.run(t, func(th gpu.Thread, c *gin.Context, d *gin.DevComm, _ int) {
				w := gin.World(d)
				must(c.ResetSignal(gin.ByThread(th), 1), "reset")
				must(c.ResetCounter(gin.ByThread(th), 0), "reset")
				// Each cooperation once more: by warp and by block too.
				allocs = testing.AllocsPerRun(200, func() {
					f(c, gin.ByThread(th), w)
					f(c, gin.ByWarp(th), w)
					f(c, gin.ByBlock(th), w)
				})
			})
			if allocs != 0 {
				t.Errorf("%v allocations", allocs)
			}
		})
	}
	t.Run("launch", func(t *testing.T) {
		if testenv.Race {
			t.Skip("sync.Pool drops some of what it holds under the race detector, so that tests do not rely on it")
		}
		st := p.comms[0].Stream()
		defer st.Close()
		d := p.dc[0].Device()
		var ended atomic.Int64
		k := gpu.NewKernel("launched", func(t gpu.Thread, dc gin.DevComm) {
			c := gin.Open(&dc, t.Block())
			must(c.Signal(gin.ByBlock(t), gin.World(&dc), 0, gin.StrongInc(0)), "signal")
			ended.Add(1)
		}, "")
		for _, g := range []doorbell.Grid{{Blocks: 1, Warps: 1}, {Blocks: 2, Warps: 3}, {Blocks: 2, Warps: 2, Cooperative: true}} {
			want := ended.Load()
			n := testing.AllocsPerRun(200, func() {
				if err := doorbell.Launch(st, k, g, d); err != nil {
					t.Fatal(err)
				}
				// One at a time: each that is queued has arguments of its own. To wait for a stream allocates an event.
				for want += int64(g.Blocks * g.Warps); ended.Load() != want; {
					runtime.Gosched()
				}
				for range 20 {
					runtime.Gosched()
				}
			})
			if err := st.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n != 0 {
				t.Errorf("%+v: %v allocations a launch", g, n)
			}
		}
	})
}
