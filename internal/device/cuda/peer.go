// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"os"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

const (
	// CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY
	registersFlags = 7
	dmaBuf         = 1 // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
)

// MapRegisters is device.Device's. It has run over the driver's double alone.
func (d *Device) MapRegisters(mem []byte) (at gpu.Ptr[byte], free func() error, err error) {
	c := d.card
	if len(mem) == 0 {
		return at, nil, fmt.Errorf("map registers: 0 bytes asked for, at least 1 is accepted")
	}
	addr, out := ffi.Addr(&mem[0]), new(outs)
	if r := c.do(cuMemHostRegister, addr, uintptr(len(mem)), registersFlags); r != success {
		return at, nil, fmt.Errorf("map registers: %w; the driver's kernel module has to allow it (NVreg_RegistryDwords=\"PeerMappingOverride=1;\")",
			c.fault(cuMemHostRegister, r, "%s of another device", size(uint64(len(mem)))))
	}
	end := byCall(cuMemHostUnregister, addr)
	if r := c.do(cuMemHostGetDevicePointer, out.at(0), addr, 0); r != success {
		return at, nil, errors.Join(fmt.Errorf("map registers: %w", c.fault(cuMemHostGetDevicePointer, r, "")), c.discard(end))
	}
	d.live.Add(1)
	return pointer(out.addr(0)), func() error {
		d.live.Add(-1)
		return c.discard(end)
	}, nil
}

// DMABuf is device.Device's. It has run over the driver's double alone.
func (d *Device) DMABuf(at gpu.Ptr[byte], bytes int) (buf *os.File, offset uint64, err error) {
	if bytes < 1 {
		return nil, 0, fmt.Errorf("DMA buffer: %d bytes asked for, at least 1 is accepted", bytes)
	}
	unit := uint64(os.Getpagesize()) // the driver takes whole pages of the host's size
	from := uint64(at.Addr()) &^ (unit - 1)
	to := (uint64(at.Addr()) + uint64(bytes) + unit - 1) &^ (unit - 1)
	out := new(outs)
	if r := d.card.do(cuMemGetHandleForAddressRange, out.at(0), uintptr(from), uintptr(to-from), dmaBuf, 0); r != success {
		return nil, 0, fmt.Errorf("DMA buffer: %w", d.card.fault(cuMemGetHandleForAddressRange, r, "%s at %#x", size(to-from), from))
	}
	return os.NewFile(uintptr(out.int32(0)), "dmabuf"), uint64(at.Addr()) - from, nil
}
