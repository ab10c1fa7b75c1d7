// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// batchVersion is the first CUDA whose driver has cuMemcpyBatchAsync: 12.8.
const batchVersion = 12080

// copyAttributes are CUmemcpyAttributes_v1 (cuda.h), for all copies of a batch: the first word is srcAccessOrder,
// CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read in the stream's order. The rest is hints and flags, none.
type copyAttributes struct {
	of    [3]uint64
	first uint64 // attrsIdxs: the copy from which on they hold
	bad   uint64 // failIdx: the driver says here which copy it refused
}

const accessInOrder = 1

// Copies is one call of the driver, where it has it, in place of one for each copy. A recording is made of single copies: the
// driver records no batch.
func (s *stream) Copies(dst, src []gpu.Ptr[byte], bytes []uint64) error {
	if err := device.ValidCopies(dst, src, bytes); err != nil {
		return err
	}
	if len(dst) < 2 || s.recording || !s.card.drv.batches() {
		for i := range dst {
			if err := s.Copy(dst[i], src[i], int(bytes[i])); err != nil {
				return err
			}
		}
		return nil
	}
	if err := s.enter(); err != nil {
		return err
	}
	r := s.card.copies(s.copies, dst, src, bytes, s.lane)
	detail := ""
	if r != success {
		detail = fmt.Sprintf("%d copies, refused was %d", len(dst), s.copies.bad)
	}
	return s.leave(cuMemcpyBatchAsync, r, "", detail)
}

// batches says whether the driver has a call for several copies.
func (d *driver) batches() bool { return d.version >= batchVersion && d.addr[cuMemcpyBatchAsync] != 0 }

// copies is that call.
func (c *card) copies(a *copyAttributes, dst, src []gpu.Ptr[byte], bytes []uint64, l *lane) result {
	*a = copyAttributes{of: [3]uint64{accessInOrder}}
	return c.do(cuMemcpyBatchAsync, ffi.Addr(&dst[0]), ffi.Addr(&src[0]), ffi.Addr(&bytes[0]), uintptr(len(dst)),
		ffi.Addr(&a.of[0]), ffi.Addr(&a.first), 1, ffi.Addr(&a.bad), l.handle)
}
