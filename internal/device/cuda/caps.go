// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// Caps is what a GPU and its driver are and can.
type Caps struct {
	Name         string
	Index, Count int    // which GPU of how many this process sees
	Driver       int    // CUDA version of the driver: 12040 is 12.4
	Bytes        uint64 // device memory
	PCI          string // domain:bus:device
	UUID         string // of this GPU among all that there are

	Major, Minor  int // compute capability
	SMs           int // multiprocessors
	WarpsPerSM    int // resident at once, at most
	BlocksPerSM   int
	CopyEngines   int
	Cooperative   bool // cooperative launches
	Unified       bool // one address space with the host's
	StreamMemory  bool // 64-bit stream memory operations
	HostAtomics   bool // atomics to host memory are atomic against the host's
	RDMA, DMABuf  bool // network cards can reach its memory: by a kernel module, by DMA-BUF
	SharedRDMA    bool // likewise that which processes share, if it is asked for
	ShareableFD   bool // its memory can be shared between processes by a descriptor
	SharedHost    bool // the host's memory that processes share is for its kernels at the address that it has for the host
	Multicast     bool // one store can reach the memory of several GPUs; never used unless it is asked for
	computeMode   int
	lanes         int
	mapHostMemory bool
}

// attribute numbers, CU_DEVICE_ATTRIBUTE_*.
const (
	attrWarpSize        = 10
	attrSMs             = 16
	attrMapHostMemory   = 19
	attrComputeMode     = 20
	attrPCIBus          = 33
	attrPCIDevice       = 34
	attrThreadsPerSM    = 39
	attrCopyEngines     = 40
	attrUnified         = 41
	attrPCIDomain       = 50
	attrMajor           = 75
	attrMinor           = 76
	attrHostAtomics     = 86
	attrRegisteredHost  = 91
	attrCooperative     = 95
	attrVirtualMemory   = 102
	attrShareableFD     = 103
	attrBlocksPerSM     = 106
	attrSharedRDMA      = 110
	attrGPUDirectRDMA   = 116
	attrStreamMemory    = 122
	attrDMABuf          = 124
	attrMulticast       = 132
	computeModeProhibit = 2
	computeModeOne      = 3 // CU_COMPUTEMODE_EXCLUSIVE_PROCESS
)

// caps reads what a GPU can.
func (d *driver) caps(index, count int, dev uintptr) (Caps, error) {
	c := Caps{Index: index, Count: count, Driver: d.version}
	name := make([]byte, 256)
	if r := d.call(cuDeviceGetName, ffi.Addr(&name[0]), uintptr(len(name)), dev); r != success {
		return c, d.fault(cuDeviceGetName, r, "GPU %d", index)
	}
	text, _, _ := bytes.Cut(name, []byte{0})
	c.Name = string(text)
	out := new(outs)
	if r := d.call(cuDeviceTotalMem, out.at(0), dev); r != success {
		return c, d.fault(cuDeviceTotalMem, r, "GPU %d", index)
	}
	c.Bytes = out.bytes(0)
	if r := d.call(cuDeviceGetUuid, out.at(2), dev); r != success {
		return c, d.fault(cuDeviceGetUuid, r, "GPU %d", index)
	}
	c.UUID = fmt.Sprintf("%016x%016x", out.bytes(2), out.bytes(3))
	var bus, slot, domain, threads int
	var virtual bool
	for _, a := range []struct {
		number uintptr
		value  *int
		flag   *bool
	}{
		{attrWarpSize, &c.lanes, nil}, {attrSMs, &c.SMs, nil}, {attrMapHostMemory, nil, &c.mapHostMemory}, {attrComputeMode, &c.computeMode, nil},
		{attrPCIBus, &bus, nil}, {attrPCIDevice, &slot, nil}, {attrPCIDomain, &domain, nil}, {attrThreadsPerSM, &threads, nil},
		{attrCopyEngines, &c.CopyEngines, nil}, {attrUnified, nil, &c.Unified}, {attrMajor, &c.Major, nil}, {attrMinor, &c.Minor, nil},
		{attrHostAtomics, nil, &c.HostAtomics}, {attrCooperative, nil, &c.Cooperative}, {attrVirtualMemory, nil, &virtual}, {attrShareableFD, nil, &c.ShareableFD},
		{attrRegisteredHost, nil, &c.SharedHost}, {attrMulticast, nil, &c.Multicast}, {attrSharedRDMA, nil, &c.SharedRDMA},
		{attrBlocksPerSM, &c.BlocksPerSM, nil}, {attrGPUDirectRDMA, nil, &c.RDMA}, {attrStreamMemory, nil, &c.StreamMemory}, {attrDMABuf, nil, &c.DMABuf},
	} {
		out[1] = 0
		if r := d.call(cuDeviceGetAttribute, out.at(1), a.number, dev); r != success {
			return c, d.fault(cuDeviceGetAttribute, r, "GPU %d, attribute %d", index, a.number)
		}
		if a.value != nil {
			*a.value = int(out.int32(1))
		} else {
			*a.flag = out.int32(1) != 0
		}
	}
	c.ShareableFD = c.ShareableFD && virtual
	c.Multicast = c.Multicast && d.addr[cuMulticastCreate] != 0
	c.PCI = fmt.Sprintf("%04x:%02x:%02x", domain, bus, slot)
	c.WarpsPerSM = threads / max(c.lanes, 1)
	return c, nil
}

// check refuses a GPU that lacks what this package stands on.
func (c Caps) check() error {
	lacks := func(what string) error {
		return fmt.Errorf("cuda: GPU %d (%s) %s: %w; doorbell runs without a GPU with --device soft", c.Index, c.Name, what, device.ErrNotAvailable)
	}
	switch {
	case c.lanes != 32:
		return lacks(fmt.Sprintf("has warps of %d threads, kernels are written for 32", c.lanes))
	case c.computeMode == computeModeProhibit:
		return lacks("is set to compute mode Prohibited (nvidia-smi -c 0 lifts it)")
	case !c.Unified || !c.mapHostMemory:
		return lacks("has no address space in common with the host")
	case !c.StreamMemory:
		return lacks("has no 64-bit stream memory operations, by which streams say how far they are")
	case !c.Cooperative:
		return lacks("has no cooperative launches")
	case c.SMs < 1 || c.WarpsPerSM < device.MaxWarpsPerBlock:
		return lacks(fmt.Sprintf("says it has %d multiprocessors of %d warps", c.SMs, c.WarpsPerSM))
	}
	return nil
}

// String is the table for people, a line each.
func (c Caps) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	yes := map[bool]string{true: "yes", false: "no"}
	for _, row := range [][2]string{
		{"GPU", fmt.Sprintf("%s, %d of %d, PCI %s", c.Name, c.Index, c.Count, c.PCI)},
		{"driver", "CUDA " + versionText(c.Driver)},
		{"memory", size(c.Bytes)},
		{"compute capability", fmt.Sprintf("%d.%d", c.Major, c.Minor)},
		{"multiprocessors", fmt.Sprintf("%d, of %d warps and %d blocks", c.SMs, c.WarpsPerSM, c.BlocksPerSM)},
		{"copy engines", fmt.Sprint(c.CopyEngines)},
		{"processes at a time", map[bool]string{true: "one (compute mode Exclusive_Process)", false: "any"}[c.computeMode == computeModeOne]},
		{"cooperative launches", yes[c.Cooperative]},
		{"stream memory operations", yes[c.StreamMemory]},
		{"atomics to host memory", yes[c.HostAtomics]},
		{"network cards reach its memory", fmt.Sprintf("by kernel module %s, by DMA-BUF %s", yes[c.RDMA], yes[c.DMABuf])},
		{"memory shared between processes", fmt.Sprintf("its own %s, the host's %s", yes[c.ShareableFD], yes[c.SharedHost])},
		{"multicast", yes[c.Multicast]},
	} {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
	w.Flush()
	return b.String()
}
