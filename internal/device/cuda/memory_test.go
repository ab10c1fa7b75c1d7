// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
)

// TestOutOfMemory says what was asked for and what there is, in the driver's name for it.
func TestOutOfMemory(t *testing.T) {
	d := newDouble(t)
	d.Set("memory", 64<<20)
	dev := d.open(cuda.Options{})
	m := must[device.Memory](t)(dev.Alloc(50 << 20))
	_, err := dev.Alloc(16 << 20)
	var ce *cuda.Error
	if !errors.Is(err, device.ErrOutOfMemory) || !errors.As(err, &ce) || ce.Code != 2 || ce.Op != "cuMemAlloc" || ce.Name != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("error %v, want the driver's", err)
	}
	says(t, err, "cuda: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; 16 MiB asked for, 14 MiB free of 64 MiB")
	shut(t, m.Free)
	shut(t, must[device.Memory](t)(dev.Alloc(60<<20)).Free)
	d.FailCall("cuMemHostAlloc", 1, 2)
	_, err = dev.AllocHost(100)
	says(t, err, "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)", "4 KiB asked for")
	shut(t, dev.Close)
}

// TestBesideKernel: while a kernel runs, nothing waits for it. Memory can be taken, zeroed, written and read; what is freed is
// given back when it has ended; what would wait is refused with the kernel's name.
func TestBesideKernel(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{Patience: 30 * time.Millisecond})
	old, host := must[device.Memory](t)(dev.Alloc(3<<20)), must[device.Memory](t)(dev.AllocHost(100))
	before := d.Count("used")
	g := gate(t, dev)
	if !dev.Busy() {
		t.Error("the device is not busy while a kernel runs")
	}
	fills := d.Count("cuMemsetD8Async")
	m := must[device.Memory](t)(dev.Alloc(3<<20 + 1))
	got := make([]byte, 3<<20+1)
	if err := m.Read(0, got); err != nil || !bytes.Equal(got, make([]byte, len(got))) {
		t.Errorf("memory taken beside a kernel is not zeroed (%v)", err)
	}
	if d.Count("cuMemsetD8Async") != fills {
		t.Error("memory was filled beside a kernel: that may need room for threads")
	}
	frees := d.Count("cuMemFree_v2") + d.Count("cuMemFreeHost")
	shut(t, old.Free)
	shut(t, host.Free)
	if n := d.Count("cuMemFree_v2") + d.Count("cuMemFreeHost"); n != frees {
		t.Error("memory was given back beside a kernel")
	}
	_, err := dev.AllocHost(2 << 20)
	if !errors.Is(err, device.ErrBusy) {
		t.Errorf("pinning 2 MiB beside a kernel: %v, want ErrBusy", err)
	}
	says(t, err, "2097152 bytes", "Gate", "30ms")
	g.open()
	shut(t, m.Free) // and with it what was put off
	if used := d.Count("used"); used >= before {
		t.Errorf("%d bytes are still taken, %d before the memory was freed", used, before)
	}
	if dev.Busy() {
		t.Error("the device is busy when nothing runs")
	}
	shut(t, must[device.Memory](t)(dev.AllocHost(2<<20)).Free)
	shut(t, dev.Close)
}

// TestReclaims: memory that waits to be given back does not make the next one fail.
func TestReclaims(t *testing.T) {
	d := newDouble(t)
	d.Set("memory", 64<<20)
	dev := d.open(cuda.Options{})
	m := must[device.Memory](t)(dev.Alloc(50 << 20))
	g := gate(t, dev)
	shut(t, m.Free)
	if _, err := dev.Alloc(50 << 20); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("memory that a kernel may still use was given away: %v", err)
	}
	g.open()
	shut(t, must[device.Memory](t)(dev.Alloc(50<<20)).Free)
	shut(t, dev.Close)
}

// TestImportBetweenRanks: ranks on one GPU have one context and one address; memory stays while one of them has it.
func TestImportBetweenRanks(t *testing.T) {
	d := newDouble(t)
	a, b := d.open(cuda.Options{Ranks: 2}), d.open(cuda.Options{Ranks: 2, LocalRank: 1})
	if n := d.Count("cuDevicePrimaryCtxRetain"); n != 1 {
		t.Errorf("%d contexts for two ranks on a GPU", n)
	}
	m := must[device.Memory](t)(a.Alloc(100))
	p := must[device.Memory](t)(b.Import(m.Handle()))
	if p.Ptr().Addr() != m.Ptr().Addr() {
		t.Error("memory is at two addresses")
	}
	if err := m.Write(10, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	shut(t, m.Free)
	got := make([]byte, 5)
	if err := p.Read(10, got); err != nil || string(got) != "hello" {
		t.Errorf("read %q after its owner freed it (%v)", got, err)
	}
	_, err := b.Import(m.Handle())
	says(t, err, "its owner has freed it")
	_, err = b.Import(device.Handle{FD: -1, Bytes: 100})
	says(t, err, "another's")
	shut(t, a.Close)
	if b.Close() == nil {
		t.Error("closed under memory that was imported")
	}
	shut(t, p.Free)
	shut(t, b.Close)
}

// TestImportBetweenGPUs lets kernels of one reach the other's memory, once, and not while one runs.
func TestImportBetweenGPUs(t *testing.T) {
	d := newDouble(t)
	d.Set("devices", 2)
	a, b := d.open(cuda.Options{}), d.open(cuda.Options{LocalRank: 1, Patience: 20 * time.Millisecond})
	m, host := must[device.Memory](t)(a.Alloc(100)), must[device.Memory](t)(a.AllocHost(100))
	g := gate(t, b)
	if _, err := b.Import(m.Handle()); !errors.Is(err, device.ErrBusy) {
		t.Errorf("memory of another GPU was mapped beside a kernel: %v", err)
	}
	shut(t, must[device.Memory](t)(b.Import(host.Handle())).Free) // for which nothing is to be done
	g.open()
	for range 2 { // the driver says of the second that it was done
		shut(t, must[device.Memory](t)(b.Import(m.Handle())).Free)
	}
	d.Set("peer", 0)
	_, err := b.Import(m.Handle())
	says(t, err, "GPU 1 (PCI 0000:18:00) cannot reach memory of GPU 0 (PCI 0000:17:00)")
	shut(t, m.Free)
	shut(t, host.Free)
	shut(t, a.Close)
	shut(t, b.Close)
}

// TestImportOutlivesRank: memory that a rank on another GPU imported stays, and the GPU with it, when the rank that took it has
// closed.
func TestImportOutlivesRank(t *testing.T) {
	d := newDouble(t)
	d.Set("devices", 2)
	a, b := d.open(cuda.Options{}), d.open(cuda.Options{LocalRank: 1})
	m, host := must[device.Memory](t)(a.Alloc(100)), must[device.Memory](t)(a.AllocHost(100))
	n, near := must[device.Memory](t)(b.Import(m.Handle())), must[device.Memory](t)(b.Import(host.Handle()))
	shut(t, m.Free)
	shut(t, host.Free)
	shut(t, a.Close)
	if n := d.Count("cuDevicePrimaryCtxRelease_v2"); n != 0 {
		t.Errorf("%d contexts ended under memory that is in use", n)
	}
	shut(t, n.Free)
	if n := d.Count("cuDevicePrimaryCtxRelease_v2"); n != 0 {
		t.Errorf("%d contexts ended under pinned memory that is in use", n)
	}
	shut(t, near.Free)
	if n := d.Count("cuDevicePrimaryCtxRelease_v2"); n != 1 {
		t.Errorf("%d contexts ended with the last memory in use, want 1", n)
	}
	shut(t, b.Close) // and the double holds that nothing is left
}
