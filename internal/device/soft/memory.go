// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/lockstep"
	"github.com/doorbell-net/doorbell/internal/sys"
)

// Allocator says where a device's memory comes from.
type Allocator int

const (
	// Heap slabs serve ranks of one process.
	Heap Allocator = iota
	// Shared memory serves ranks in several processes.
	Shared
)

// page is the alignment of memory.
const page = 4096

type memory struct {
	bytes    []byte
	far      bool // the host has no view of it
	fd       int  // -1 on the heap
	imported bool
	freed    sync.Once
	onFree   func()
}

func (m *memory) Bytes() []byte {
	if m.far {
		return nil
	}
	return m.bytes
}

func (m *memory) Ptr() gpu.Ptr[byte] { return gpu.PtrOf(m.bytes) }

func (m *memory) Write(off int, src []byte) error {
	if err := device.Span("write memory", off, len(src), len(m.bytes)); err != nil {
		return err
	}
	if m.far && len(src) == 4 && off%4 == 0 { // a word that threads look at while they run
		gpu.Store(gpu.Cast[uint32](m.Ptr().Byte(uint64(off))), binary.NativeEndian.Uint32(src), gpu.Release, gpu.ScopeSys)
		return nil
	}
	copy(m.bytes[off:], src)
	return nil
}

func (m *memory) Read(off int, dst []byte) error {
	err := device.Span("read memory", off, len(dst), len(m.bytes))
	if err == nil {
		copy(dst, m.bytes[off:])
	}
	return err
}

func (m *memory) Handle() device.Handle {
	h := device.Handle{FD: m.fd, Bytes: len(m.bytes)}
	if m.fd < 0 {
		h.Local = m
	}
	return h
}

func (m *memory) Free() (err error) {
	m.freed.Do(func() {
		if m.fd >= 0 || m.imported {
			if err = sys.Unmap(m.bytes); err == nil && m.fd >= 0 {
				err = sys.CloseFD(m.fd)
			}
		}
		if m.onFree != nil {
			m.onFree()
		}
	})
	return err
}

// farName is that of memory between processes that the host has no view of: what a descriptor is, it says itself.
const farName = "doorbell-far"

// isFar says whether a descriptor is of such memory.
func isFar(fd int) bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return err == nil && strings.Contains(name, farName)
}

func (d *Device) Alloc(bytes int) (device.Memory, error) {
	m, err := d.alloc(bytes, d.opt.Far)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (d *Device) alloc(bytes int, far bool) (*memory, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("alloc: %d bytes asked for, at least 1 is accepted", bytes)
	}
	// The kernel would promise more than there is and kill the process when it is touched.
	if have, ok := sys.MemAvailable(); ok && uint64(bytes) > have {
		return nil, fmt.Errorf("alloc: need %d bytes, have %d: %w", bytes, have, device.ErrOutOfMemory)
	}
	m := &memory{far: far, fd: -1, onFree: func() { d.live.Add(-1) }}
	if d.opt.Allocator == Shared {
		name := "doorbell"
		if far {
			name = farName
		}
		fd, b, err := sys.NewShared(name, bytes)
		if err != nil {
			return nil, fmt.Errorf("alloc: %w", err)
		}
		m.fd, m.bytes = fd, b
	} else {
		m.bytes = slab(bytes)
	}
	d.live.Add(1)
	return m, nil
}

// AllocHost is Alloc of memory that the host has a view of. Where warps have lanes, kernels are held to a GPU's rules, and do no
// atomics on it.
func (d *Device) AllocHost(bytes int) (device.Memory, error) {
	m, err := d.alloc(bytes, false)
	if err != nil {
		return nil, err
	}
	if gpu.WarpSize > 1 {
		forget := lockstep.HostMemory(m.Ptr().Addr(), uint64(bytes))
		m.onFree = func() {
			forget()
			d.live.Add(-1)
		}
	}
	return m, nil
}

func (d *Device) Import(h device.Handle) (device.Memory, error) {
	if m, ok := h.Local.(*memory); ok {
		if h.Bytes < 1 || h.Bytes > len(m.bytes) {
			return nil, fmt.Errorf("import memory: %d bytes asked for, the memory has %d", h.Bytes, len(m.bytes))
		}
		return &memory{bytes: m.bytes[:h.Bytes:h.Bytes], far: m.far, fd: -1}, nil // the heap keeps it while somebody points at it
	}
	if h.FD < 0 {
		return nil, fmt.Errorf("import memory: no descriptor and no local memory in the handle")
	}
	b, err := sys.MapShared(h.FD, h.Bytes)
	if err != nil {
		return nil, fmt.Errorf("import memory: %w", err)
	}
	return &memory{bytes: b, far: isFar(h.FD), fd: -1, imported: true}, nil
}

// MapRegisters is device.Device's: kernels are this process's threads.
func (d *Device) MapRegisters(mem []byte) (gpu.Ptr[byte], func() error, error) {
	return gpu.PtrOf(mem), func() error { return nil }, nil
}

// DMABuf is device.Device's. There is none: other hardware maps the host's memory by its address.
func (d *Device) DMABuf(gpu.Ptr[byte], int) (*os.File, uint64, error) {
	return nil, 0, fmt.Errorf("DMA buffer of device soft: %w", device.ErrNotAvailable)
}
