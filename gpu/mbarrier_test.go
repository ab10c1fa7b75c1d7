// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/gpu"
)

// tile is what a block of the tests here shares.
type tile struct {
	full, empty [2]gpu.Mbarrier
	data        [2][4][4]uint32
}

var shared gpu.Shared[tile]

// await waits for a phase.
func await(t *testing.T, th gpu.Thread, b *gpu.Mbarrier, parity uint32) bool {
	for start := th.Clock(); !b.TryWait(th, parity); th.Idle(0, 0) {
		if th.Clock()-start > 20e9 {
			t.Errorf("a phase of parity %d was not complete after 20 s", parity)
			return false
		}
	}
	return true
}

// TestPipeline has one thread copy tiles in, the lanes of other warps compare them, and one of those copy a row out: two tiles
// in turn, each of which is taken again when all lanes have read it. Under -race the detector agrees that nobody reads too early or writes too early.
func TestPipeline(t *testing.T) {
	const rounds, readers = 200, 3
	var in [rounds][4][4]uint32
	var out [rounds + 1][4]uint32
	for i := range in {
		for j := range 4 {
			for k := range 4 {
				in[i][j][k] = uint32(i*100 + j*10 + k)
			}
		}
	}
	inAt, outAt := aligned(len(in)*64), aligned(rounds*16)
	for i := range in {
		gpu.Cast[[4][4]uint32](gpu.PtrOf(inAt)).At(i).Store(in[i])
	}
	warps(1+readers, func(th gpu.Thread) {
		s := shared.Of(th)
		if th.Index() == 0 {
			for i := range 2 {
				s.full[i].Init(th, 1)
				s.empty[i].Init(th, readers*gpu.WarpSize)
			}
		}
		th.SyncBlock()
		if th.Warp() == 0 && th.Lane() > 0 {
			return
		}
		for i := range rounds {
			at, parity := i%2, uint32(i/2%2)
			b, data := &s.full[at], gpu.Cast[byte](gpu.PtrTo(&s.data[at]))
			if th.Warp() == 0 {
				if i >= 2 && !await(t, th, &s.empty[at], parity^1) {
					return
				}
				b.ArriveExpect(th, 64)
				gpu.CopyBulkIn(th, data, gpu.PtrOf(inAt).Byte(uint64(64*i)), 48, b)
				gpu.CopyBulkIn(th, data.Byte(48), gpu.PtrOf(inAt).Byte(uint64(64*i+48)), 16, b)
				continue
			}
			if !await(t, th, b, parity) {
				return
			}
			if s.data[at] != in[i] {
				t.Errorf("round %d: warp %d read %v", i, th.Warp(), s.data[at])
			}
			if th.Index() == gpu.WarpSize {
				gpu.FenceBulk()
				gpu.CopyBulkOut(th, gpu.PtrOf(outAt).Byte(uint64(16*i)), data.Byte(16), 16)
				gpu.CommitBulk()
				gpu.WaitBulkRead()
			}
			s.empty[at].Arrive(th)
		}
		gpu.WaitBulk()
	})
	for i := range rounds {
		if out[i] = gpu.Cast[[4]uint32](gpu.PtrOf(outAt)).At(i).Load(); out[i] != in[i][1] {
			t.Fatalf("round %d: %v was copied out (want %v)", i, out[i], in[i][1])
		}
	}
}

// aligned is memory at a multiple of 16.
func aligned(n int) []byte {
	b := make([]byte, n+16)
	for gpu.PtrOf(b).Addr()%16 != 0 {
		b = b[1:]
	}
	return b[:n]
}

// TestPhases compares an Mbarrier with counts: a phase is complete when all have arrived and all bytes have come, in
// whatever order, and the next begins.
func TestPhases(t *testing.T) {
	thread(func(th gpu.Thread) {
		rapid.Check(t, func(r *rapid.T) {
			full := rapid.Uint32Range(1, 5).Draw(r, "arrivals")
			var b gpu.Mbarrier
			b.Init(th, full)
			mem := aligned(2 << 10)
			for phase := range uint32(6) {
				arrived, announced, came := uint32(0), uint32(0), uint32(0)
				for arrived < full || announced != came {
					if b.TryWait(th, phase) || !b.TryWait(th, phase+1) {
						r.Fatalf("phase %d: complete after %d of %d arrivals and %d of %d bytes", phase, arrived, full, came, announced)
					}
					n := 16 * rapid.Uint32Range(0, 4).Draw(r, "blocks")
					switch {
					case arrived == full || came < announced && rapid.Bool().Draw(r, "copy"):
						n = announced - came
						gpu.CopyBulkIn(th, gpu.PtrOf(mem), gpu.PtrOf(mem[1<<10:]), n, &b)
						came += n
					case n == 0:
						b.Arrive(th)
						arrived++
					default:
						b.ArriveExpect(th, n)
						arrived++
						announced += n
					}
				}
				if !b.TryWait(th, phase) || b.TryWait(th, phase+1) {
					r.Fatalf("phase %d: not complete after all arrivals and bytes, or the next one is", phase)
				}
			}
		})
	})
}

// TestEarlyBytes: bytes may come before they are announced.
func TestEarlyBytes(t *testing.T) {
	mem := aligned(64)
	thread(func(th gpu.Thread) {
		var b gpu.Mbarrier
		b.Init(th, 2)
		gpu.CopyBulkIn(th, gpu.PtrOf(mem), gpu.PtrOf(mem).Byte(32), 32, &b)
		b.Arrive(th)
		if b.TryWait(th, 0) {
			t.Error("complete without an arrival")
		}
		b.ArriveExpect(th, 32)
		if !b.TryWait(th, 0) {
			t.Error("not complete with all")
		}
	})
}

// TestBulkRefused: what a GPU would take as undefined is a panic here.
func TestBulkRefused(t *testing.T) {
	mem := aligned(64)
	p := gpu.PtrOf(mem)
	thread(func(th gpu.Thread) {
		for want, f := range map[string]func(b *gpu.Mbarrier){
			"accepted are 1 to 1048575 arrivals": func(b *gpu.Mbarrier) { b.Init(th, 0) },
			"1 to 1048575 arrivals":              func(b *gpu.Mbarrier) { b.Init(th, 1<<20) },
			"more arrivals than Init was told":   func(b *gpu.Mbarrier) { b.ArriveExpect(th, 16); b.Arrive(th) },
			"more than 1048575 bytes":            func(b *gpu.Mbarrier) { b.ArriveExpect(th, 1<<20) },
			"bulk copy: addresses and bytes":     func(b *gpu.Mbarrier) { gpu.CopyBulkIn(th, p.Byte(8), p, 16, b) },
			"have to be multiples of 16":         func(b *gpu.Mbarrier) { gpu.CopyBulkOut(th, p, p.Byte(32), 8) },
		} {
			func() {
				defer func() {
					if text, _ := recover().(string); !strings.Contains(text, want) {
						t.Errorf("%q (want %q)", text, want)
					}
				}()
				var b gpu.Mbarrier
				b.Init(th, 1)
				f(&b)
			}()
		}
	})
	if !bytes.Equal(mem, make([]byte, 64)) {
		t.Error("a copy that was refused wrote")
	}
}
