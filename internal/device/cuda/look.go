// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"cmp"
	"fmt"

	"github.com/doorbell-net/doorbell/internal/device"
)

// Look says which GPUs this process sees, and of each what keeps it from being used, without opening one. library is the
// driver's, "" for libcuda.so.1. The error wraps [device.ErrNotAvailable] where there is no driver, an old one, or no GPU.
func Look(library string) (all []Caps, unfit []error, err error) {
	drv, err := load(cmp.Or(library, "libcuda.so.1"))
	if err != nil {
		return nil, nil, err
	}
	out := new(outs)
	if r := drv.call(cuDeviceGetCount, out.at(0)); r != success {
		return nil, nil, drv.fault(cuDeviceGetCount, r, "")
	}
	n := int(out.int32(0))
	if n == 0 {
		return nil, nil, fmt.Errorf("the driver sees no GPU (CUDA_VISIBLE_DEVICES hides them, or there is none): %w", device.ErrNotAvailable)
	}
	for i := range n {
		if r := drv.call(cuDeviceGet, out.at(0), uintptr(i)); r != success {
			return nil, nil, drv.fault(cuDeviceGet, r, "GPU %d of %d", i, n)
		}
		c, err := drv.caps(i, n, uintptr(out.int32(0)))
		if err != nil {
			return nil, nil, err
		}
		all, unfit = append(all, c), append(unfit, c.check())
	}
	return all, unfit, nil
}
