// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/abi"
)

func BenchmarkProxyPass(b *testing.B) {
	for _, c := range []struct {
		op     uint8
		size   int
		queues int
	}{{abi.OpSignal, 0, 1}, {abi.OpPutValue, 8, 1}, {abi.OpPutCell, 200, 1}, {abi.OpPut, 4096, 1}, {abi.OpPutValue, 8, 64}} {
		b.Run(fmt.Sprintf("%s/%dB/%dqueues", strings.ReplaceAll(opName(c.op), " ", "-"), c.size, c.queues), func(b *testing.B) {
			r := newShmRig(b, shape{contexts: c.queues, peers: 1, depth: 1024, signals: 1, counters: 1, windows: 1, cells: true, maxBytes: 1 << 18, bytes: 8192})
			d := r.desc(c.op, 0, uint64(c.size), 0, 0)
			d.Flags |= abi.FlagSignalInc | abi.FlagStrong
			cell := make([]byte, c.size)
			if c.op != abi.OpPutCell {
				cell = nil
			}
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				r.put(i%c.queues, 0, d, cell, true)
				r.owner.Pass()
			}
			b.StopTimer()
			for q := range c.queues {
				if got, want := r.completed(q, 0), (b.N+c.queues-1-q)/c.queues; got != want {
					b.Fatalf("%d of %d operations were moved", got, want)
				}
			}
		})
	}
}

// BenchmarkProxyIdle is a pass that finds nothing.
func BenchmarkProxyIdle(b *testing.B) {
	for _, queues := range []int{1, 16, 64, 640} {
		b.Run(fmt.Sprint(queues), func(b *testing.B) {
			r := newShmRig(b, shape{contexts: queues, peers: 1, depth: 8, signals: 1, maxBytes: 8})
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				r.owner.Pass()
			}
		})
	}
}

// TestAllocs holds that a pass allocates nothing, whatever it moves.
func TestAllocs(t *testing.T) {
	for _, op := range []uint8{abi.OpSignal, abi.OpPutValue, abi.OpPutCell, abi.OpPut} {
		for _, queues := range []int{1, 40} {
			r := newShmRig(t, shape{contexts: queues, peers: 1, depth: 64, signals: 1, counters: 1, windows: 1, cells: true, maxBytes: 100, bytes: 1000})
			size := map[uint8]uint64{abi.OpSignal: 0, abi.OpPutValue: 8, abi.OpPutCell: 90, abi.OpPut: 950}[op]
			d := r.desc(op, 0, size, 0, 0)
			d.Flags = abi.FlagSignalAdd | abi.FlagStrong | abi.FlagCounter
			var cell []byte
			if op == abi.OpPutCell {
				cell = make([]byte, size)
			}
			moved := 0
			n := testing.AllocsPerRun(500, func() {
				r.put(moved%queues, 0, d, cell, true)
				moved++
				r.owner.Pass()
			})
			r.until(t, "all is through", func() bool { return r.counter(0, 0) == uint64((moved+queues-1)/queues) })
			if n != 0 {
				t.Errorf("%s, %d queues: %v allocations a pass", opName(op), queues, n)
			}
		}
	}
}
