// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// NVLink multicast, by the driver's multicast objects. None of its functions is called unless the user asked for it
// (Options.Multimem): it can put GPUs out of service where their fabric is not set up for it. It has run over the driver's
// test double alone, on no GPU.

// errNoMulticast says why there is none, and how there is.
var errNoMulticast = errors.New("NVLink multicast is off: it can put GPUs out of service where their fabric is not set up for it, and ours has run on no GPU; DOORBELL_MULTIMEM=1 turns it on")

// MayMulticast is device.Multicaster's: it refuses what was not asked for, or is not there, before the driver hears of it.
func (d *Device) MayMulticast() error {
	c := d.card
	switch {
	case !d.opt.Multimem:
		return errNoMulticast
	case !c.caps.Multicast:
		return fmt.Errorf("GPU %d (%s) has no NVLink multicast: %w", c.index, c.caps.Name, device.ErrNotAvailable)
	case !d.opt.Shared:
		return fmt.Errorf("GPU %d: NVLink multicast is of memory that processes share, and this process's is not", c.index)
	}
	return c.failure()
}

// multicastProperties is CUmulticastObjectProp: numDevices at 0, size at 8, handleTypes at 16, flags at 24 (cuda.h).
func multicastProperties(devices int, bytes uint64) *[4]uint64 {
	return &[4]uint64{uint64(uint32(devices)), bytes, memDescriptor, 0}
}

// multicastGrain is what the sizes of objects, and of memory that is bound to them, are a multiple of.
func (c *card) multicastGrain() (uint64, error) {
	out, prop := new(outs), multicastProperties(2, page) // it depends on neither
	if r := c.do(cuMulticastGetGranularity, out.at(0), ffi.Addr(&prop[0]), memGrainSufficing); r != success {
		return 0, c.fault(cuMulticastGetGranularity, r, "GPU %d", c.index)
	}
	n := out.bytes(0)
	if n == 0 || n%page != 0 {
		return 0, fmt.Errorf("GPU %d binds memory to multicast by %d bytes: a multiple of %d is accepted", c.index, n, page)
	}
	return n, nil
}

// multicast is a rank's part of an object.
type multicast struct {
	dev    *Device
	handle uintptr
	fd     int // of who made it; -1 at the others
	bytes  int // of each rank's memory
	block  block
	bound  bool
}

// NewMulticast is device.Multicaster's.
func (d *Device) NewMulticast(devices, bytes int) (device.Multicast, error) {
	if err := d.MayMulticast(); err != nil {
		return nil, err
	}
	if devices < 2 || bytes < 1 {
		return nil, fmt.Errorf("multicast: %d bytes of %d GPUs asked for, 1 or more of 2 or more are accepted", bytes, devices)
	}
	c := d.card
	want, err := d.grains(bytes)
	if err != nil {
		return nil, fmt.Errorf("multicast: %w", err)
	}
	out, prop := new(outs), multicastProperties(devices, want)
	if r := c.do(cuMulticastCreate, out.at(0), ffi.Addr(&prop[0])); r != success {
		return nil, c.fault(cuMulticastCreate, r, "%s of %d GPUs", size(want), devices)
	}
	m := &multicast{dev: d, handle: out.addr(0), fd: -1, bytes: bytes}
	if r := c.do(cuMemExportToShareableHandle, out.at(1), m.handle, memDescriptor, 0); r != success {
		return nil, errors.Join(c.fault(cuMemExportToShareableHandle, r, "a multicast object, as a descriptor"), m.Free())
	}
	m.fd = int(out.int32(1))
	return m, nil
}

// ImportMulticast is device.Multicaster's.
func (d *Device) ImportMulticast(h device.Handle) (device.Multicast, error) {
	if err := d.MayMulticast(); err != nil {
		return nil, err
	}
	c, out := d.card, new(outs)
	if r := c.do(cuMemImportFromShareableHandle, out.at(0), uintptr(h.FD), memDescriptor); r != success {
		return nil, c.fault(cuMemImportFromShareableHandle, r, "descriptor %d, of a multicast object", h.FD)
	}
	return &multicast{dev: d, handle: out.addr(0), fd: -1, bytes: h.Bytes}, nil
}

func (m *multicast) Handle() device.Handle { return device.Handle{FD: m.fd, Bytes: m.bytes} }

func (m *multicast) Join() error {
	c := m.dev.card
	if r := c.do(cuMulticastAddDevice, m.handle, c.dev); r != success {
		return c.fault(cuMulticastAddDevice, r, "GPU %d", c.index)
	}
	return nil
}

func (m *multicast) Bind(mem device.Memory) error {
	c := m.dev.card
	own, ok := mem.(*memory)
	if !ok || own.block.card != c || own.block.host {
		return fmt.Errorf("multicast: memory of GPU %d is accepted, which this is not", c.index)
	}
	want, err := m.dev.grains(m.bytes)
	if err != nil {
		return fmt.Errorf("multicast: %w", err)
	}
	out := new(outs)
	if r := c.do(cuMemRetainAllocationHandle, out.at(0), own.block.addr); r != success {
		return c.fault(cuMemRetainAllocationHandle, r, "at %#x", own.block.addr)
	}
	defer c.do(cuMemRelease, out.addr(0)) // what is bound stays
	if r := c.do(cuMulticastBindMem, m.handle, 0, out.addr(0), 0, uintptr(want), 0); r != success {
		return c.fault(cuMulticastBindMem, r, "%s of GPU %d", size(want), c.index)
	}
	m.bound = true
	m.block.end, err = c.place(&m.block, m.handle, want)
	return err
}

func (m *multicast) Ptr() gpu.Ptr[byte] { return pointer(m.block.addr) }

// Free unmaps, unbinds and releases when no kernel runs, as memory is freed.
func (m *multicast) Free() error {
	c, end := m.dev.card, m.block.end
	if m.bound {
		want, err := m.dev.grains(m.bytes)
		if err != nil {
			return err
		}
		end.calls = append(end.calls, call{op: cuMulticastUnbind, args: [4]uintptr{m.handle, c.dev, 0, uintptr(want)}})
	}
	end.calls = append(end.calls, call{op: cuMemRelease, args: [4]uintptr{m.handle}})
	if fd := m.fd; fd >= 0 {
		end.then = func() error { return sys.CloseFD(fd) }
	}
	return c.discard(end)
}
