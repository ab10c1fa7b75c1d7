// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

const (
	page      = 4096
	hostFlags = 3 // CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP: for all contexts, at the same address for kernels
	// smallPinned is what the driver was seen to pin without waiting for a kernel, on an H200 with driver 580.
	smallPinned = 1 << 20
)

// block is memory of a rank and of those that imported it. It is given back when all have freed it.
type block struct {
	card  *card
	addr  uintptr // at a page
	bytes int
	host  bool
	fd    int       // by which another process maps it, -1 for none
	end   discarded // gives it back
	users atomic.Int64
}

type memory struct {
	dev   *Device
	block *block
	bytes int // of an import fewer than the block's, perhaps
	freed atomic.Bool
}

func roundUp(n int) uint64 { return (uint64(n) + page - 1) &^ (page - 1) }

func (d *Device) Alloc(bytes int) (device.Memory, error) {
	c := d.card
	if bytes <= 0 {
		return nil, fmt.Errorf("alloc: %d bytes asked for, at least 1 is accepted", bytes)
	}
	if err := c.failure(); err != nil {
		return nil, fmt.Errorf("alloc: %w", err)
	}
	if uint64(bytes) > c.caps.Bytes {
		return nil, fmt.Errorf("alloc: need %d bytes, GPU %d has %d: %w", bytes, c.index, c.caps.Bytes, device.ErrOutOfMemory)
	}
	take := d.takeOwn
	if d.opt.Shared {
		take = d.takeShared
	}
	b := &block{card: c, bytes: bytes, fd: -1}
	err := take(b)
	if errors.Is(err, device.ErrOutOfMemory) && c.reclaim() {
		err = take(b)
	}
	if err != nil {
		return nil, fmt.Errorf("alloc: %w", err)
	}
	m := d.own(b)
	if err := d.copier.clear(b.addr, bytes); err != nil {
		return nil, errors.Join(fmt.Errorf("alloc: %w", err), m.Free())
	}
	return m, nil
}

// takeOwn takes memory for this process alone.
func (d *Device) takeOwn(b *block) error {
	c, out, want := d.card, new(outs), roundUp(b.bytes)
	r := c.do(cuMemAlloc, out.at(0), uintptr(want))
	if r == success && out.addr(0)%page != 0 {
		// The driver promises 256 bytes.
		if err := c.discard(byCall(cuMemFree, out.addr(0))); err != nil {
			return err
		}
		want += page
		r = c.do(cuMemAlloc, out.at(0), uintptr(want))
	}
	if r != success {
		return d.short(cuMemAlloc, r, want)
	}
	b.addr = (out.addr(0) + page - 1) &^ (page - 1)
	b.end = byCall(cuMemFree, out.addr(0))
	return nil
}

// short is the error of a call that was to take device memory.
func (d *Device) short(f function, r result, want uint64) error {
	free, total := d.memInfo()
	return d.card.fault(f, r, "%s asked for, %s free of %s", size(want), size(free), size(total))
}

func (d *Device) memInfo() (free, total uint64) {
	out := new(outs)
	d.card.do(cuMemGetInfo, out.at(0), out.at(1)) // for a message: zeros if it fails
	return out.bytes(0), out.bytes(1)
}

// reclaim gives back what waits for that, if nothing runs.
func (c *card) reclaim() bool {
	c.gate.Lock()
	defer c.gate.Unlock()
	c.mu.Lock()
	some := len(c.limbo) > 0
	c.mu.Unlock()
	if !some || c.busy() {
		return false
	}
	c.sweep()
	return true
}

func (d *Device) AllocHost(bytes int) (device.Memory, error) {
	c := d.card
	if bytes <= 0 {
		return nil, fmt.Errorf("alloc host memory: %d bytes asked for, at least 1 is accepted", bytes)
	}
	// The kernel would promise more than there is and kill the process when it is pinned.
	if have, ok := sys.MemAvailable(); ok && uint64(bytes) > have {
		return nil, fmt.Errorf("alloc host memory: need %d bytes, have %d: %w", bytes, have, device.ErrOutOfMemory)
	}
	if err := c.failure(); err != nil {
		return nil, fmt.Errorf("alloc host memory: %w", err)
	}
	take := d.pinOwn
	if d.opt.Shared {
		take = d.pinShared
	}
	return d.pin("alloc host memory", bytes, take)
}

// pin has take make pinned memory, beside kernels where that waits for none.
func (d *Device) pin(what string, bytes int, take func(*block) error) (device.Memory, error) {
	c := d.card
	undo := c.discard
	if bytes > smallPinned {
		if err := c.quiet(fmt.Sprintf("%s: pin %d bytes", what, bytes), d.opt.Patience, &waiter{progress: &d.progress}); err != nil {
			return nil, err
		}
		defer c.gate.Unlock()
		undo = c.free
	}
	b := &block{card: c, bytes: bytes, host: true, fd: -1}
	err := take(b)
	if err == nil && b.addr%page != 0 {
		err = fmt.Errorf("the driver gave %#x, which is no page's address", b.addr)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", what, err), undo(b.end))
	}
	forget, then := c.hosts.add(b.addr, roundUp(b.bytes)), b.end.then
	b.end.then = func() error {
		if forget(); then != nil {
			return then()
		}
		return nil
	}
	return d.own(b), nil
}

// pinOwn takes pinned memory for this process alone.
func (d *Device) pinOwn(b *block) error {
	out, want := new(outs), roundUp(b.bytes)
	if r := d.card.do(cuMemHostAlloc, out.at(0), uintptr(want), hostFlags); r != success {
		return d.card.fault(cuMemHostAlloc, r, "%s asked for", size(want))
	}
	b.addr, b.end = out.addr(0), byCall(cuMemFreeHost, out.addr(0))
	clear(ffi.Bytes(b.addr, b.bytes))
	return nil
}

// own makes a rank one more user of a block, and of its GPU where that is another one than the rank's: what is taken there is given
// back there.
func (d *Device) own(b *block) *memory {
	if b.card != d.card {
		b.card.hold()
	}
	b.users.Add(1)
	d.live.Add(1)
	return &memory{dev: d, block: b, bytes: b.bytes}
}

// Import maps memory of another rank. Within this process, on one GPU its addresses are ours, on another one they are made to
// be; that of another process is mapped by its descriptor.
func (d *Device) Import(h device.Handle) (device.Memory, error) {
	m, ok := h.Local.(*memory)
	if ok && m.freed.Load() {
		return nil, fmt.Errorf("import memory: its owner has freed it")
	}
	if ok && (h.Bytes < 1 || h.Bytes > m.bytes) {
		return nil, fmt.Errorf("import memory: %d bytes asked for, the memory has %d", h.Bytes, m.bytes)
	}
	if ok && m.block.card != d.card && m.block.fd >= 0 {
		return d.importFD(m.block.fd, h.Bytes)
	}
	if !ok && h.FD >= 0 {
		return d.importFD(h.FD, h.Bytes)
	}
	if !ok {
		return nil, fmt.Errorf("import memory: the handle names no memory of a GPU in this process, and has no descriptor of another's")
	}
	if from := m.block.card; from != d.card && !m.block.host {
		if from.drv != d.card.drv {
			return nil, fmt.Errorf("import memory: it is of another driver")
		}
		if err := d.reach(from); err != nil {
			return nil, fmt.Errorf("import memory: %w", err)
		}
	}
	n := d.own(m.block)
	n.bytes = h.Bytes
	return n, nil
}

// reach lets kernels here use memory of another GPU.
func (d *Device) reach(from *card) error {
	c := d.card
	out := new(outs)
	if r := c.drv.call(cuDeviceCanAccessPeer, out.at(0), c.dev, from.dev); r != success {
		return c.fault(cuDeviceCanAccessPeer, r, "GPU %d from GPU %d", from.index, c.index)
	}
	if out.int32(0) == 0 {
		return fmt.Errorf("GPU %d (PCI %s) cannot reach memory of GPU %d (PCI %s)", c.index, c.caps.PCI, from.index, from.caps.PCI)
	}
	if err := c.quiet(fmt.Sprintf("reach memory of GPU %d", from.index), d.opt.Patience, &waiter{progress: &d.progress}); err != nil {
		return err
	}
	defer c.gate.Unlock()
	if r := c.do(cuCtxEnablePeerAccess, from.ctx, 0); r != success && r != errPeerEnabled {
		return c.fault(cuCtxEnablePeerAccess, r, "GPU %d from GPU %d", from.index, c.index)
	}
	return nil
}

func (m *memory) Bytes() []byte {
	if !m.block.host {
		return nil
	}
	return ffi.Bytes(m.block.addr, m.bytes)
}

func (m *memory) Ptr() gpu.Ptr[byte] { return pointer(m.block.addr) }

// pointer is a device address as kernels' arguments have it.
func pointer(addr uintptr) gpu.Ptr[byte] { return gpu.PtrOf(ffi.Bytes(addr, 1)) }

func (m *memory) Handle() device.Handle {
	return device.Handle{FD: m.block.fd, Bytes: m.bytes, Local: m}
}

func (m *memory) Write(off int, src []byte) error {
	if err := device.Span("write memory", off, len(src), m.bytes); err != nil {
		return err
	}
	if m.block.host {
		copy(m.Bytes()[off:], src)
		return nil
	}
	return m.dev.copier.write(m.block.addr+uintptr(off), src)
}

func (m *memory) Read(off int, dst []byte) error {
	if err := device.Span("read memory", off, len(dst), m.bytes); err != nil {
		return err
	}
	if m.block.host {
		copy(dst, m.Bytes()[off:])
		return nil
	}
	return m.dev.copier.read(dst, m.block.addr+uintptr(off))
}

// Free gives it back when no kernel runs, since the driver would wait for one: at once, or later.
func (m *memory) Free() error {
	if m.freed.Swap(true) {
		return nil
	}
	m.dev.live.Add(-1)
	b := m.block
	var err error
	if b.users.Add(-1) == 0 {
		err = b.card.discard(b.end)
	}
	if b.card != m.dev.card {
		err = errors.Join(err, b.card.detach())
	}
	if err != nil {
		return fmt.Errorf("free: %w", err)
	}
	return nil
}
