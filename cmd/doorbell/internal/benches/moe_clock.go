// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"fmt"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// clock times what is on a stream by the device's clock, as published figures of GPUs do: the host's part of a launch is not
// counted, and caches hold nothing of what is timed. It is for devices whose memory the host does not see.
type clock struct {
	dc    *doorbell.DevComm
	times *doorbell.Buffer // stamps
	flush *doorbell.Buffer // larger than caches
}

const maxStamps = 4

// newClock is collective.
func (b *bench) newClock() (k *clock, err error) {
	k = &clock{}
	if k.dc, err = b.c.DevComm(b.ctx, doorbell.Needs{Contexts: 1, Barriers: 1}); err != nil {
		return nil, err
	}
	if k.times, err = b.c.Alloc(maxStamps * int(gpu.SizeOf[kernels.Stamp]())); err != nil {
		return nil, err
	}
	k.flush, err = b.c.Alloc(max(b.cfg.Flush, 64))
	return k, err
}

// spans is how long each of what is queued takes, with nothing of the host between them. Caches are emptied before, and all
// ranks' streams come together.
func (m *moeRun) spans(queue ...func() error) ([]time.Duration, error) {
	b, at := m.b, gpu.Cast[kernels.Stamp](m.clock.times.Ptr())
	stamp := func(i int, together int32) error {
		a := kernels.StampArgs{DC: m.clock.dc.Device(), At: at.At(i), Together: together}
		return doorbell.Launch(b.st, kernels.StampTimeKernel, doorbell.Grid{Blocks: 1, Warps: 1}, a)
	}
	if err := m.emptyCaches(); err != nil {
		return nil, err
	}
	if err := stamp(0, 1); err != nil {
		return nil, err
	}
	for i, next := range queue {
		if err := next(); err != nil {
			return nil, err
		}
		if err := stamp(i+1, 0); err != nil {
			return nil, err
		}
	}
	if err := m.buf.Wait(b.ctx, b.st); err != nil {
		return nil, err
	}
	stamps := make([]kernels.Stamp, len(queue)+1)
	if err := doorbell.Read(b.c, stamps, at); err != nil {
		return nil, err
	}
	if s := stamps[0].Status; s != gin.OK {
		return nil, fmt.Errorf("rank %d: the ranks' streams did not come together: %v", b.c.Rank(), s)
	}
	out := make([]time.Duration, len(queue))
	for i := range out {
		out[i] = time.Duration(stamps[i+1].Ns - stamps[i].Ns)
	}
	return out, nil
}

// emptyCaches queues a write that is larger than they are.
func (m *moeRun) emptyCaches() error {
	b, flush := m.b, m.clock.flush
	grid := doorbell.Grid{Blocks: max(b.c.Warps()/32, 1), Warps: 32}
	if b.info.Device == "soft" {
		grid = doorbell.Grid{Blocks: 1, Warps: 1}
	}
	return doorbell.Launch(b.st, kernels.FillKernel, grid, kernels.FillArgs{Span: kernels.Span{
		At: flush.Ptr(), Bytes: uint64(flush.Len()), Seed: b.cfg.Seed, Iter: uint64(len(m.ops)),
	}})
}

// timedByDevice runs a dispatch and its combine.
func (m *moeRun) timedByDevice(x *load, s *spent) error {
	took, err := m.spans(func() error {
		err := m.form.queueDispatch(x)
		if err == nil {
			m.ops = append(m.ops, x)
		}
		return err
	}, m.form.queueCombine)
	if err != nil {
		return err
	}
	s.dispatch.record(took[0])
	s.combine.record(took[1])
	return nil
}

// stage times a part of an operation: by the device's clock where there is one, else as the host sees it.
func (m *moeRun) stage(do func() error) (time.Duration, error) {
	if m.clock != nil {
		took, err := m.spans(do)
		if err != nil {
			return 0, err
		}
		return took[0], nil
	}
	start := time.Now()
	if err := do(); err != nil {
		return 0, err
	}
	err := m.buf.Wait(m.b.ctx, m.b.st)
	return time.Since(start), err
}
