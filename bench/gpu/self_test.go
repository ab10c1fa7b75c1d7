// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/tools/measure/ways"
)

// TestToSelf: a rank receives what it sends to itself by stores, of one thread, a warp or a block, to the byte: by puts and signals,
// and through pointers. On a GPU lines for tools/measure say what a message takes, as NVSHMEM's and NCCL's programs do for theirs.
func TestToSelf(t *testing.T) {
	for _, on := range []struct {
		device         string
		lanes          int
		samples, every uint64
		ways           []ways.Way
	}{
		{"soft", gpu.WarpSize, 4, 2, []ways.Way{{Threads: 1, Bytes: []int{8, 48, 300}}, {Threads: 2 * gpu.WarpSize, Bytes: []int{8, 112, 4099}}}},
		{"cuda", 32, 512, 16, ways.ToSelf()},
	} {
		t.Run(on.device, func(t *testing.T) {
			if on.device == "cuda" {
				needGPU(t)
			}
			c := open(t, 1, on.device)[0]
			const most = 4 << 20
			send, recv, ns, out := window(t, c, most+64), window(t, c, most), must(c.Alloc(4*int(on.samples)))(t), must(c.Alloc(resultBytes))(t)
			pattern := make([]byte, most)
			rand.NewChaCha8([32]byte{9}).Read(pattern)
			st := c.Stream()
			x := kernels.Exchange{Send: send.Device(), Recv: recv.Device(), Iters: on.samples * on.every, Every: on.every,
				Samples: gpu.Cast[uint32](ns.Ptr()), Result: gpu.Cast[kernels.Result](out.Ptr())}
			type sends struct {
				name   string
				kernel gpu.Kernel[kernels.Exchange]
			}
			for _, w := range on.ways {
				var by []sends
				if w.Threads == 1 {
					by = append(by, sends{"LSA", kernels.SelfByThreadKernel}, sends{"LSA pointers", kernels.PointersByThreadKernel})
				}
				if w.Threads == on.lanes {
					by = append(by, sends{"LSA", kernels.SelfByWarpKernel}, sends{"LSA pointers", kernels.PointersByWarpKernel})
				}
				if w.Threads > on.lanes {
					by = append(by, sends{"LSA", kernels.SelfByBlockKernel}, sends{"LSA pointers", kernels.PointersByBlockKernel})
				}
				for _, n := range w.Bytes {
					for _, by := range by {
						name := fmt.Sprintf("%s to itself, %d B, %d threads", by.name, n, w.Threads)
						dc := must(c.DevComm(t.Context(), doorbell.Needs{Signals: 1}))(t)
						x.DC, x.Bytes = dc.Device(), uint64(n)
						check(t, errors.Join(send.Buffer().Write(0, append(bytes.Clone(pattern), make([]byte, 64)...)), recv.Buffer().Write(0, make([]byte, most)),
							doorbell.Launch(st, by.kernel, doorbell.Grid{Blocks: 1, Warps: max(1, w.Threads/on.lanes)}, x), st.Wait(t.Context())))
						var r kernels.Result
						if _, err := binary.Decode(must(read(out))(t), binary.LittleEndian, &r); err != nil || r.Done != 1 || r.Count != x.Iters {
							t.Fatalf("%s: %+v (%v)", name, r, err)
						}
						if got := must(read(recv.Buffer()))(t); !bytes.Equal(got[:n], pattern[:n]) || slices.ContainsFunc(got[n:], func(b byte) bool { return b != 0 }) {
							t.Errorf("%s: what came is not what was sent", name)
						}
						took := make([]uint32, on.samples)
						check(t, errors.Join(doorbell.Read(c, took, x.Samples), out.Write(0, make([]byte, resultBytes)), dc.Close()))
						for i := len(took) - 1; i > 0; i-- {
							took[i] -= took[i-1] // stamps of a clock
						}
						took = took[len(took)/16+1:] // the first warm up
						slices.Sort(took)
						figure(c, name, `"p50_us":%.4f`, float64(took[len(took)/2])/float64(on.every)/1e3)
					}
				}
			}
		})
	}
}
