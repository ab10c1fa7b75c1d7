// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
)

// TestCopiesByCall: copies that are given together are one call of a driver that has it, and one for each where the driver is of
// an older CUDA; the error says which copy the driver refused.
func TestCopiesByCall(t *testing.T) {
	const n, batch, one = 4096, "cuMemcpyBatchAsync", "cuMemcpyAsync"
	for version, calls := range map[int][2]int{12080: {1, 0}, 12060: {0, 3}} {
		d := newDouble(t)
		d.Set("version", version)
		dev := d.open(cuda.Options{})
		mem, host := must[device.Memory](t)(dev.Alloc(n)), must[device.Memory](t)(dev.AllocHost(n))
		s := dev.NewStream()
		at := func(p gpu.Ptr[byte]) []gpu.Ptr[byte] { return []gpu.Ptr[byte]{p, p.Byte(100), p.Byte(200)} }
		batches, ones := d.Count(batch), d.Count(one)
		if (batches > 0) != (calls[0] > 0) {
			t.Errorf("CUDA %d: %d batches before there is anything to copy: each lane does one first where there are any", version, batches)
		}
		if err := s.Copies(at(mem.Ptr()), at(host.Ptr()), []uint64{100, 100, 50}); err != nil {
			t.Error(err)
		}
		if got := [2]int{d.Count(batch) - batches, d.Count(one) - ones}; got != calls {
			t.Errorf("CUDA %d: three copies are %d batches and %d copies, want %d", version, got[0], got[1], calls)
		}
		if version == 12080 {
			err := s.Copies(at(mem.Ptr().Byte(1000)), []gpu.Ptr[byte]{host.Ptr(), host.Ptr(), host.Ptr().Byte(n)}, []uint64{1, 1, 1})
			if err == nil || !strings.Contains(err.Error(), "3 copies, refused was 2") {
				t.Errorf("a copy from past the end: %v", err)
			}
		}
		for _, f := range []func() error{func() error { return within(t, s) }, s.Close, mem.Free, host.Free, dev.Close} {
			shut(t, f)
		}
	}
}
