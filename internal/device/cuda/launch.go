// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"runtime"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

const lanes = 32

func (s *stream) Launch(c gpu.Call, g device.Grid) error {
	err := s.launch(c, g)
	c.Release() // the driver has copied the arguments
	return err
}

func (s *stream) launch(c gpu.Call, g device.Grid) error {
	if err := g.Validate(s.dev.MaxCooperativeWarps()); err != nil {
		return err
	}
	if err := s.failure(); err != nil {
		return err
	}
	k, err := s.dev.kernel(c.Code())
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	if g.Warps > k.maxWarps {
		return fmt.Errorf("launch: %d warps per block asked for, 1 to %d are accepted of kernel %s, which has %d registers a thread",
			g.Warps, k.maxWarps, k.name, k.registers)
	}
	if g.Cooperative {
		n, err := s.dev.resident(k, g.Warps)
		if err != nil {
			return err
		}
		if g.Blocks > n {
			return fmt.Errorf("launch: cooperative grid of %d blocks of %d warps cannot be resident: of kernel %s this rank's share of %d multiprocessors holds %d blocks",
				g.Blocks, g.Warps, k.name, s.dev.share(), n)
		}
	}
	if err := s.enter(); err != nil {
		return err
	}
	params := uintptr(0)
	if args := c.Args(); len(args) > 0 {
		s.param[0] = ffi.Addr(&args[0])
		params = ffi.Addr(&s.param[0])
	}
	if r := s.begin(); r != success {
		return s.leave(cuStreamWriteValue64, r, "", "before kernel "+k.name)
	}
	f, r := cuLaunchKernel, success
	if g.Cooperative {
		f = cuLaunchCooperativeKernel
		r = s.card.do(f, k.handle, uintptr(g.Blocks), 1, 1, uintptr(g.Warps*lanes), 1, 1, 0, s.lane.handle, params)
	} else {
		r = s.card.do(f, k.handle, uintptr(g.Blocks), 1, 1, uintptr(g.Warps*lanes), 1, 1, 0, s.lane.handle, params, 0)
	}
	runtime.KeepAlive(c)
	detail := ""
	if r != success {
		detail = fmt.Sprintf("kernel %s, %d blocks of %d warps", k.name, g.Blocks, g.Warps)
	}
	return s.leave(f, r, k.name, detail)
}
