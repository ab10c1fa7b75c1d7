// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"testing"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
)

// multicastFunctions are those of the driver that may put a GPU out of service.
var multicastFunctions = []string{"cuMulticastGetGranularity", "cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem", "cuMulticastUnbind"}

// TestNoMulticastUnasked: unless the user asked for it, no function of multicast is called, whatever else is done, and who
// wants one is told why there is none and how there is.
func TestNoMulticastUnasked(t *testing.T) {
	d := newDouble(t)
	d.Set("devices", 2)
	if err := everything(t, d, true); err != nil {
		t.Fatal(err)
	}
	dev := d.open(cuda.Options{Shared: true})
	_, err := dev.NewMulticast(2, 100)
	says(t, err, "NVLink multicast is off", "out of service", "run on no GPU", "DOORBELL_MULTIMEM=1")
	_, err = dev.ImportMulticast(device.Handle{FD: 0, Bytes: 100})
	says(t, err, "DOORBELL_MULTIMEM=1")
	shut(t, dev.Close)
	for _, f := range multicastFunctions {
		if n := d.Count(f); n != 0 {
			t.Errorf("%s was called %d times", f, n)
		}
	}
}

// spread takes the steps for two GPUs, each with memory of its own, and gives all back.
func spread(t *testing.T, devs [2]*cuda.Device) (err error) {
	var parts [2]device.Multicast
	var mem [2]device.Memory
	defer func() {
		for i := range devs {
			if parts[i] != nil {
				shut(t, parts[i].Free)
			}
			if mem[i] != nil {
				shut(t, mem[i].Free)
			}
		}
	}()
	for i, dev := range devs {
		if mem[i], err = dev.Alloc(3<<20 + i); err != nil {
			return err
		}
	}
	if parts[0], err = devs[0].NewMulticast(2, 3<<20); err != nil {
		return err
	}
	if parts[1], err = devs[1].ImportMulticast(parts[0].Handle()); err != nil {
		return err
	}
	for _, p := range parts {
		if err = p.Join(); err != nil {
			return err
		}
	}
	for i, p := range parts {
		if err = p.Bind(mem[i]); err != nil {
			return err
		}
		if p.Ptr().IsNil() || p.Ptr() == mem[i].Ptr() {
			t.Errorf("GPU %d: the address is %#x, its memory's %#x", i, p.Ptr().Addr(), mem[i].Ptr().Addr())
		}
	}
	return nil
}

// TestMulticast: two GPUs take the steps; each call of the driver that takes something fails once, and all that was taken is given
// back (the double holds that at the end).
func TestMulticast(t *testing.T) {
	for _, f := range append(multicastFunctions[:4:4], "", "cuMemRetainAllocationHandle", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess") {
		for nth := 1; nth <= 4; nth++ {
			d := newDouble(t)
			d.Set("devices", 2)
			var devs [2]*cuda.Device
			for i := range devs {
				devs[i] = d.open(cuda.Options{Shared: true, Multimem: true, GPU: cuda.Index(i)})
			}
			if f != "" {
				d.FailCall(f, nth, 2)
			}
			before := d.Count("memories")
			err := spread(t, devs)
			if err != nil && (f == "" || !errors.Is(err, device.ErrOutOfMemory)) {
				t.Errorf("%s, %d: %v", f, nth, err)
			}
			d.FailCall(f, 0, 0)
			if n := d.Count("memories"); n != before {
				t.Errorf("%s, %d: %d pieces of memory are left, there were %d", f, nth, n, before)
			}
			for i := range devs {
				shut(t, devs[i].Close)
			}
		}
	}
}

// TestMulticastRefuses: a GPU without it, memory that is not of the GPU, and fewer than two GPUs.
func TestMulticastRefuses(t *testing.T) {
	d := newDouble(t)
	d.Set("multicast", 0)
	dev := d.open(cuda.Options{Shared: true, Multimem: true})
	_, err := dev.NewMulticast(2, 100)
	says(t, err, "GPU 0 (double 0) has no NVLink multicast")
	shut(t, dev.Close)
	d.Set("multicast", 1)
	d.Set("devices", 2)
	dev = d.open(cuda.Options{Multimem: true})
	_, err = dev.NewMulticast(2, 100)
	says(t, err, "memory that processes share")
	shut(t, dev.Close)
	dev = d.open(cuda.Options{Shared: true, Multimem: true})
	_, err = dev.NewMulticast(1, 100)
	says(t, err, "100 bytes of 1 GPUs", "2 or more")
	m := must[device.Multicast](t)(dev.NewMulticast(2, 100))
	host := must[device.Memory](t)(dev.AllocHost(100))
	says(t, m.Bind(host), "memory of GPU 0 is accepted")
	shut(t, host.Free)
	shut(t, m.Free)
	shut(t, dev.Close)
}
