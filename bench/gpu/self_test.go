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
)

// TestToSelf: a rank receives what it sends to itself by stores, of one thread, a warp or a block, to the byte. On a GPU lines for
// tools/measure say what a message takes, as NVSHMEM's and NCCL's programs do for theirs (ways of trips.cuh).
func TestToSelf(t *testing.T) {
	thread, warp, block := kernels.SelfByThreadKernel, kernels.SelfByWarpKernel, kernels.SelfByBlockKernel
	type ways struct {
		threads int
		self    gpu.Kernel[kernels.Exchange]
		bytes   []int
	}
	for _, on := range []struct {
		device         string
		samples, every uint64
		ways           []ways
	}{
		{"soft", 4, 2, []ways{{1, thread, []int{8, 300}}, {gpu.WarpSize, warp, []int{8, 300}}, {2 * gpu.WarpSize, block, []int{8, 4099}}}},
		{"cuda", 512, 16, []ways{
			{1, thread, []int{8, 128, 4096}}, {32, warp, []int{8, 128, 4096, 65536}}, {256, block, []int{8, 128, 4096, 7168, 14336, 65536}},
			{1024, block, []int{8, 128, 4096, 7168, 14336, 65536, 1 << 20, 4 << 20}},
		}},
	} {
		t.Run(on.device, func(t *testing.T) {
			lanes := gpu.WarpSize
			if on.device == "cuda" {
				needGPU(t)
				lanes = 32
			}
			c := open(t, 1, on.device)[0]
			const most = 4 << 20
			send, recv, ns, out := window(t, c, most), window(t, c, most), must(c.Alloc(4*int(on.samples)))(t), must(c.Alloc(resultBytes))(t)
			pattern := make([]byte, most)
			rand.NewChaCha8([32]byte{9}).Read(pattern)
			check(t, send.Buffer().Write(0, pattern))
			st := c.Stream()
			for _, w := range on.ways {
				for _, n := range w.bytes {
					dc := must(c.DevComm(t.Context(), doorbell.Needs{Signals: 1}))(t)
					x := kernels.Exchange{DC: dc.Device(), Send: send.Device(), Recv: recv.Device(), Bytes: uint64(n), Iters: on.samples * on.every,
						Samples: gpu.Cast[uint32](ns.Ptr()), Every: on.every, Result: gpu.Cast[kernels.Result](out.Ptr())}
					check(t, errors.Join(recv.Buffer().Write(0, make([]byte, most)), doorbell.Launch(st, w.self, doorbell.Grid{Blocks: 1, Warps: max(1, w.threads/lanes)}, x), st.Wait(t.Context())))
					var r kernels.Result
					if _, err := binary.Decode(must(read(out))(t), binary.LittleEndian, &r); err != nil || r.Done != 1 || r.Count != x.Iters {
						t.Fatalf("%d bytes by %d threads: %+v (%v)", n, w.threads, r, err)
					}
					if got := must(read(recv.Buffer()))(t); !bytes.Equal(got[:n], pattern[:n]) || slices.ContainsFunc(got[n:], func(b byte) bool { return b != 0 }) {
						t.Errorf("%d bytes by %d threads: what came is not what was sent", n, w.threads)
					}
					took := make([]uint32, on.samples)
					check(t, errors.Join(doorbell.Read(c, took, x.Samples), dc.Close()))
					took = took[len(took)/16:] // the first warm up
					slices.Sort(took)
					figure(c, fmt.Sprintf("LSA to itself, %d B, %d threads", n, w.threads), `"p50_us":%.4f`, float64(took[len(took)/2])/1e3)
				}
			}
		})
	}
}
