// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
)

// taking are the driver's functions that take something, which there may be no more of.
var taking = []string{
	"cuDevicePrimaryCtxRetain", "cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamCreateWithPriority", "cuMemCreate", "cuMemExportToShareableHandle",
	"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemHostRegister_v2", "cuLinkCreate_v2", "cuModuleLoadDataEx",
	"cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags", "cuGraphLaunch",
}

// TestOutOfMemoryInTurn: each call of the driver that takes something fails once, out of memory. What needed it says so, or the
// device goes on without it, and all that was taken before is given back: the double holds that at the end of each.
func TestOutOfMemoryInTurn(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for _, f := range taking {
			for nth, reached := 1, true; reached; nth++ {
				t.Run(fmt.Sprintf("shared=%v,%s,%d", shared, f, nth), func(t *testing.T) {
					d := newDouble(t)
					before := descriptors(t)
					d.FailCall(f, nth, 2)
					err := everything(t, d, shared)
					if err != nil && !errors.Is(err, device.ErrOutOfMemory) {
						t.Errorf("%v, want ErrOutOfMemory", err)
					}
					if d.Count("cuDevicePrimaryCtxRetain") != d.Count("cuDevicePrimaryCtxRelease_v2") && f != "cuDevicePrimaryCtxRetain" {
						t.Error("a context is left")
					}
					reached = d.Count(f) >= nth
					d.FailCall(f, 0, 0)
					if err := everything(t, d, shared); err != nil {
						t.Errorf("afterwards: %v", err)
					}
					if n := descriptors(t); n != before {
						t.Errorf("%d descriptors are open, %d before", n, before)
					}
				})
				if testing.Short() || nth > 4 {
					break
				}
			}
		}
	}
}

// descriptors is how many this process has open.
func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// everything takes one of each thing that a device has, and gives it back.
func everything(t *testing.T, d *double, shared bool) (err error) {
	dev, err := d.try(cuda.Options{Shared: shared})
	if err != nil {
		return err
	}
	defer func() { shut(t, dev.Close) }()
	var all []device.Memory
	defer func() {
		for _, m := range all {
			shut(t, m.Free)
		}
	}()
	for _, take := range []func() (device.Memory, error){
		func() (device.Memory, error) { return dev.Alloc(100) },
		func() (device.Memory, error) { return dev.AllocHost(100) },
		func() (device.Memory, error) { return dev.AllocHost(2 << 20) },
		func() (device.Memory, error) { return dev.Import(all[0].Handle()) },
		func() (device.Memory, error) {
			if h := all[1].Handle(); h.FD >= 0 {
				return dev.Import(device.Handle{FD: h.FD, Bytes: h.Bytes})
			}
			return dev.Import(all[1].Handle())
		},
	} {
		m, err := take()
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	s := dev.NewStream()
	defer func() { shut(t, s.Close) }()
	fill := func(s device.Stream) error {
		return s.Launch(devicetest.FillKernel.Bind(devicetest.FillArgs{To: all[0].Ptr(), Bytes: 100, Value: 1}), one)
	}
	if err := fill(s); err != nil {
		return err
	}
	g, err := dev.Capture(fill)
	if err != nil {
		return err
	}
	defer func() { shut(t, g.Close) }()
	if err := s.Replay(g); err != nil {
		return err
	}
	return within(t, s)
}
