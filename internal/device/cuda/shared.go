// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// Memory that processes share has a descriptor. A GPU's is of the driver's virtual memory management: physical memory that is
// exported, imported, and mapped where addresses were reserved. The host's is a memfd that each process maps and pins. What a
// descriptor is, it says itself.

// CUmemAllocationProp is 32 bytes: type at 0, requestedHandleTypes at 4, location's type at 8 and id at 12, allocFlags at
// 24, whose second byte is gpuDirectRDMACapable, and what stays zero.
// CUmemAccessDesc is 12: location's type and id, and the flags (cuda.h).
const (
	memPinned         = 1 // CU_MEM_ALLOCATION_TYPE_PINNED: memory that stays where it is
	memDescriptor     = 1 // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	memOnDevice       = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	memForNICs        = 1 << 8
	memReadWrite      = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	memGrainSufficing = 0 // CU_MEM_ALLOC_GRANULARITY_MINIMUM
	registerFlags     = 3 // CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP
)

// tryShared takes a piece of each kind and imports it: what says that memory can be shared may still be refused, in a container
// say.
func (d *Device) tryShared() error {
	for _, take := range []func(int) (device.Memory, error){d.Alloc, d.AllocHost} {
		m, err := take(page)
		if err != nil {
			return err
		}
		again, err := d.importFD(m.Handle().FD, page)
		if err == nil {
			err = again.Free()
		}
		if err = errors.Join(err, m.Free()); err != nil {
			return err
		}
	}
	return nil
}

func (c *card) properties() *[8]uint32 {
	p := &[8]uint32{memPinned, memDescriptor, memOnDevice, uint32(c.dev)}
	if c.caps.SharedRDMA {
		p[6] = memForNICs
	}
	return p
}

// grain is what sizes of memory that is mapped are a multiple of.
func (c *card) grain() (uint64, error) {
	out, prop := new(outs), c.properties()
	if r := c.do(cuMemGetAllocationGranularity, out.at(0), ffi.Addr(&prop[0]), memGrainSufficing); r != success {
		return 0, c.fault(cuMemGetAllocationGranularity, r, "GPU %d", c.index)
	}
	n := out.bytes(0)
	if n == 0 || n%page != 0 {
		return 0, fmt.Errorf("GPU %d maps memory by %d bytes: a multiple of %d is accepted", c.index, n, page)
	}
	return n, nil
}

// grains is a size as memory that is mapped has it, and that may be bound to multicast if that was asked for.
func (d *Device) grains(bytes int) (uint64, error) {
	grain, err := d.card.grain()
	if err == nil && d.opt.Multimem && d.card.caps.Multicast {
		var more uint64
		more, err = d.card.multicastGrain()
		grain = max(grain, more)
	}
	if err != nil {
		return 0, err
	}
	return (uint64(bytes) + grain - 1) / grain * grain, nil
}

// takeShared takes device memory that has a descriptor.
func (d *Device) takeShared(b *block) error {
	c := d.card
	want, err := d.grains(b.bytes)
	if err != nil {
		return err
	}
	out, prop := new(outs), c.properties()
	if r := c.do(cuMemCreate, out.at(0), uintptr(want), ffi.Addr(&prop[0]), 0); r != success {
		return d.short(cuMemCreate, r, want)
	}
	handle := out.addr(0)
	defer c.do(cuMemRelease, handle) // what is mapped or has a descriptor stays
	if r := c.do(cuMemExportToShareableHandle, out.at(1), handle, memDescriptor, 0); r != success {
		return c.fault(cuMemExportToShareableHandle, r, "%s, as a descriptor", size(want))
	}
	fd := int(out.int32(1))
	end, err := c.place(b, handle, want)
	if err != nil {
		_ = sys.CloseFD(fd)
		return err
	}
	end.then = func() error { return sys.CloseFD(fd) }
	b.fd, b.end = fd, end
	return nil
}

// place maps physical memory at addresses of its own, for kernels of this GPU.
func (c *card) place(b *block, handle uintptr, bytes uint64) (end discarded, err error) {
	out, n := new(outs), uintptr(bytes)
	fail := func(f function, r result) (discarded, error) {
		err := c.fault(f, r, "%s, GPU %d", size(bytes), c.index)
		return discarded{}, errors.Join(err, c.discard(end))
	}
	if r := c.do(cuMemAddressReserve, out.at(0), n, 0, 0, 0); r != success {
		return fail(cuMemAddressReserve, r)
	}
	at := out.addr(0)
	end.first(cuMemAddressFree, at, n)
	if r := c.do(cuMemMap, at, n, 0, handle, 0); r != success {
		return fail(cuMemMap, r)
	}
	end.first(cuMemUnmap, at, n)
	access := &[3]uint32{memOnDevice, uint32(c.dev), memReadWrite}
	if r := c.do(cuMemSetAccess, at, n, ffi.Addr(&access[0]), 1); r != success {
		return fail(cuMemSetAccess, r)
	}
	b.addr = at
	return end, nil
}

// pinShared takes pinned memory that has a descriptor.
func (d *Device) pinShared(b *block) error {
	fd, mem, err := sys.NewShared("doorbell", b.bytes)
	if err != nil {
		return err
	}
	b.fd = fd
	return d.register(b, mem, func() error { return sys.CloseFD(fd) })
}

// register pins memory of the host that is mapped here. then is what ends with it.
func (d *Device) register(b *block, mem []byte, then func() error) error {
	b.end.then = func() error {
		err := sys.Unmap(mem)
		if then != nil {
			err = errors.Join(err, then())
		}
		return err
	}
	b.addr = ffi.Addr(&mem[0])
	if r := d.card.do(cuMemHostRegister, b.addr, uintptr(roundUp(b.bytes)), registerFlags); r != success {
		return d.card.fault(cuMemHostRegister, r, "%s asked for", size(roundUp(b.bytes)))
	}
	b.end.first(cuMemHostUnregister, b.addr)
	return nil
}

// importFD maps the first bytes of memory of another process. The descriptor stays the caller's.
func (d *Device) importFD(fd, bytes int) (device.Memory, error) {
	c := d.card
	if bytes < 1 {
		return nil, fmt.Errorf("import memory: %d bytes asked for, at least 1 is accepted", bytes)
	}
	if err := c.failure(); err != nil {
		return nil, fmt.Errorf("import memory: %w", err)
	}
	if sys.IsShared(fd) {
		return d.pin("import memory", bytes, func(b *block) error {
			mem, err := sys.MapShared(fd, bytes)
			if err != nil {
				return err
			}
			return d.register(b, mem, nil)
		})
	}
	b := &block{card: c, bytes: bytes, fd: -1}
	if err := d.adopt(b, fd); err != nil {
		return nil, fmt.Errorf("import memory: %w", err)
	}
	return d.own(b), nil
}

// adopt maps device memory of another process.
func (d *Device) adopt(b *block, fd int) error {
	c, out := d.card, new(outs)
	want, err := d.grains(b.bytes)
	if err != nil {
		return err
	}
	if r := c.do(cuMemImportFromShareableHandle, out.at(0), uintptr(fd), memDescriptor); r != success {
		return c.fault(cuMemImportFromShareableHandle, r, "descriptor %d, %s asked for", fd, size(want))
	}
	handle := out.addr(0)
	defer c.do(cuMemRelease, handle)
	b.end, err = c.place(b, handle, want)
	return err
}
