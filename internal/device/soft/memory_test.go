// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

func newDevice(t testing.TB, o Options) *Device {
	d := New(o)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

var allocators = map[string]Allocator{"heap": Heap, "shared": Shared}

// TestAlignment: memory of each size starts at a page and is zero.
func TestAlignment(t *testing.T) {
	for name, a := range allocators {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, Options{Allocator: a})
			for _, n := range []int{1, 7, 8, 9, 4095, 4096, 4097, 8192, 100_001, 1 << 20} {
				m, err := d.Alloc(n)
				if err != nil {
					t.Fatal(err)
				}
				b := m.Bytes()
				if len(b) != n || m.Ptr().Addr()%4096 != 0 || len(bytes.Trim(b, "\x00")) != 0 {
					t.Errorf("%d bytes: %d at %#x", n, len(b), m.Ptr().Addr())
				}
				for i := range b {
					b[i] = 0xff // to the last byte
				}
				if err := errors.Join(m.Free(), m.Free()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestImport maps memory of another device: what one writes the other reads, also after the first has freed it.
func TestImport(t *testing.T) {
	for name, a := range allocators {
		t.Run(name, func(t *testing.T) {
			d, other := newDevice(t, Options{Allocator: a}), newDevice(t, Options{Allocator: a})
			m, err := d.Alloc(5000)
			if err != nil {
				t.Fatal(err)
			}
			h := m.Handle()
			if h.Bytes != 5000 || (h.FD >= 0) != (a == Shared) || (h.Local != nil) != (a == Heap) {
				t.Errorf("handle is %+v", h)
			}
			first, err1 := other.Import(h)
			second, err2 := d.Import(h)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			for i, b := range [][]byte{m.Bytes(), first.Bytes(), second.Bytes()} {
				b[i*1000] = byte(i + 1)
			}
			for i, b := range [][]byte{m.Bytes(), first.Bytes(), second.Bytes()} {
				if len(b) < 5000 || b[0] != 1 || b[1000] != 2 || b[2000] != 3 {
					t.Errorf("mapping %d has other bytes", i)
				}
			}
			if err := errors.Join(m.Free(), second.Free()); err != nil {
				t.Error(err)
			}
			if first.Bytes()[2000] != 3 {
				t.Error("memory went away that is still mapped")
			}
			if err := errors.Join(first.Free(), first.Free()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBadMemory refuses sizes and handles that cannot be.
func TestBadMemory(t *testing.T) {
	for name, a := range allocators {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, Options{Allocator: a})
			for _, n := range []int{0, -1} {
				if _, err := d.Alloc(n); err == nil || !strings.Contains(err.Error(), "at least 1") {
					t.Errorf("alloc of %d: %v", n, err)
				}
			}
			_, err := d.Alloc(1 << 50)
			if !errors.Is(err, device.ErrOutOfMemory) || !strings.Contains(err.Error(), "need 1125899906842624") || !strings.Contains(err.Error(), "have ") {
				t.Errorf("alloc of a petabyte: %v", err)
			}
			m, err := d.Alloc(100)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Free()
			for _, h := range []device.Handle{{FD: -1, Bytes: 100}, {FD: -1, Local: "something"}, {FD: 1 << 20, Bytes: 100}, {FD: m.Handle().FD, Bytes: 1 << 20}, {FD: m.Handle().FD}, {FD: 0, Bytes: 1}} {
				if _, err := d.Import(h); err == nil || !strings.Contains(err.Error(), "import memory") {
					t.Errorf("import of %+v: %v", h, err)
				}
			}
		})
	}
}

// TestOtherHardware: registers are where they are, and another device's driver is told to take the host's memory by its address.
func TestOtherHardware(t *testing.T) {
	d, regs := newDevice(t, Options{}), make([]byte, 256)
	at, free, err := d.MapRegisters(regs)
	if err != nil || at != gpu.PtrOf(regs) || free() != nil {
		t.Errorf("registers at %#x, want %#x: %v", at.Addr(), gpu.PtrOf(regs).Addr(), err)
	}
	if _, _, err := d.DMABuf(at, 256); !errors.Is(err, device.ErrNotAvailable) {
		t.Errorf("a DMA buffer of the host's memory: %v", err)
	}
}
