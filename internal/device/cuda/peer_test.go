// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"encoding/binary"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
)

// TestRegisters: kernels find another device's registers where the driver says, until they are given back, and none are left
// where the driver refuses.
func TestRegisters(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	page := make([]byte, 4096)
	regs := page[0x800:0xa00] // begins at no page
	at, free, err := dev.MapRegisters(regs)
	if err != nil || at.Addr() != gpu.PtrOf(regs).Addr() {
		t.Fatalf("registers at %#x for kernels, at %#x here: %v", at.Addr(), gpu.PtrOf(regs).Addr(), err)
	}
	if dev.Close() == nil {
		t.Error("closed under registers that kernels may use")
	}
	g := gate(t, dev)
	shut(t, free)
	if n := d.Count("cuMemHostUnregister"); n != 0 {
		t.Error("registers were given back beside a kernel")
	}
	g.open()
	_, _, err = dev.MapRegisters(nil)
	says(t, err, "map registers", "0 bytes")
	d.FailCall("cuMemHostRegister_v2", 1, 801)
	_, _, err = dev.MapRegisters(regs)
	says(t, err, "map registers", "cuMemHostRegister", "(801)", "512 bytes of another device", "PeerMappingOverride=1")
	d.FailCall("cuMemHostGetDevicePointer_v2", 1, 1)
	_, _, err = dev.MapRegisters(regs)
	says(t, err, "map registers", "cuMemHostGetDevicePointer", "(1)")
	shut(t, dev.Close) // and the double holds that no memory is left
}

// TestSharedRDMA: memory that processes share is taken for NICs too where the GPU says that it can be, and only there.
func TestSharedRDMA(t *testing.T) {
	for _, can := range []int{0, 1} {
		d := newDouble(t) // which refuses it otherwise
		d.Set("rdma", can)
		dev := d.open(cuda.Options{Shared: true})
		m := must[device.Memory](t)(dev.Alloc(100))
		if m.Handle().FD < 0 {
			t.Errorf("rdma=%d: memory is not shared", can)
		}
		shut(t, m.Free)
		shut(t, dev.Close)
	}
}

// TestDMABuf: a piece of device memory is at its offset in whole pages that another driver can map.
func TestDMABuf(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	m := must[device.Memory](t)(dev.Alloc(3 * 4096))
	buf, off, err := dev.DMABuf(m.Ptr().Byte(4096+24), 4096)
	if err != nil {
		t.Fatal(err)
	}
	var begin [8]byte
	info, err := buf.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := buf.ReadAt(begin[:], 0); err != nil || off != 24 || info.Size() != 2*4096 || binary.NativeEndian.Uint64(begin[:]) != uint64(m.Ptr().Addr())+4096 {
		t.Errorf("offset %d in %d bytes from %x on: %v", off, info.Size(), begin, err)
	}
	shut(t, buf.Close)
	_, _, err = dev.DMABuf(m.Ptr(), 0)
	says(t, err, "DMA buffer", "0 bytes")
	d.FailCall("cuMemGetHandleForAddressRange", 1, 801)
	_, _, err = dev.DMABuf(m.Ptr(), 100)
	says(t, err, "DMA buffer", "cuMemGetHandleForAddressRange", "(801)", "4 KiB")
	shut(t, m.Free)
	shut(t, dev.Close)
}
