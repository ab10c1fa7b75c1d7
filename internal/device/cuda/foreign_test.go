// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
)

// TestForeignKernels: kernels that the program launched past our streams are treated as ours that run. Ranks of a process
// share the GPU, so one rank's count for all.
func TestForeignKernels(t *testing.T) {
	d := newDouble(t)
	a, b := d.open(cuda.Options{Patience: 10 * time.Millisecond}), d.open(cuda.Options{Patience: 10 * time.Millisecond})
	m := must[device.Memory](t)(b.Alloc(1 << 20))
	a.Foreign(2)
	a.Foreign(-1)
	if !b.Busy() {
		t.Error("the device is not busy while a foreign kernel runs")
	}
	frees := d.Count("cuMemFree_v2")
	shut(t, m.Free)
	if d.Count("cuMemFree_v2") != frees {
		t.Error("memory was given back beside a foreign kernel")
	}
	_, err := b.AllocHost(2 << 20)
	if !errors.Is(err, device.ErrBusy) {
		t.Errorf("pinning 2 MiB beside a foreign kernel: %v, want ErrBusy", err)
	}
	says(t, err, "1 that the program launched itself")
	a.Foreign(-1)
	if b.Busy() {
		t.Error("the device is busy when nothing runs")
	}
	shut(t, must[device.Memory](t)(b.Alloc(100)).Free)
	if d.Count("cuMemFree_v2") == frees {
		t.Error("what was freed beside a foreign kernel is not given back after it")
	}
	shut(t, a.Close)
	shut(t, b.Close)
}
