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
	dc     *doorbell.DevComm
	times  *doorbell.Buffer // stamps
	flush  *doorbell.Buffer // larger than caches
	stamps int              // of the step so far
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

// begin queues what empties the caches, and has the stream wait for all ranks'.
func (m *moeRun) begin() error {
	k, b := m.clock, m.b
	grid := doorbell.Grid{Blocks: max(b.c.Warps()/32, 1), Warps: 32}
	if b.info.Device == "soft" {
		grid = doorbell.Grid{Blocks: 1, Warps: 1}
	}
	a := kernels.FillArgs{Span: kernels.Span{At: k.flush.Ptr(), Bytes: uint64(k.flush.Len()), Seed: b.cfg.Seed, Iter: uint64(len(m.ops))}}
	if err := doorbell.Launch(b.st, kernels.FillKernel, grid, a); err != nil {
		return err
	}
	k.stamps = 0
	return m.stamp(1)
}

// stamp queues a look at the device's clock; together: when all ranks' streams have come to theirs.
func (m *moeRun) stamp(together int32) error {
	k := m.clock
	at := gpu.Cast[kernels.Stamp](k.times.Ptr()).At(k.stamps)
	k.stamps++
	return doorbell.Launch(m.b.st, kernels.StampTimeKernel, doorbell.Grid{Blocks: 1, Warps: 1}, kernels.StampArgs{DC: k.dc.Device(), At: at, Together: together})
}

// spans are from each stamp to the next. The stream is done.
func (m *moeRun) spans() ([]time.Duration, error) {
	k := m.clock
	at := make([]kernels.Stamp, k.stamps)
	if err := doorbell.Read(m.b.c, at, gpu.Cast[kernels.Stamp](k.times.Ptr())); err != nil {
		return nil, err
	}
	out := make([]time.Duration, len(at)-1)
	for i, s := range at {
		if s.Status != gin.OK {
			return nil, fmt.Errorf("rank %d: the ranks' streams did not come together: %v", m.b.c.Rank(), s.Status)
		}
		if i > 0 {
			out[i-1] = time.Duration(s.Ns - at[i-1].Ns)
		}
	}
	return out, nil
}

// timedByDevice runs a dispatch and its combine, with nothing of the host between them.
func (m *moeRun) timedByDevice(x *load, d, c *times) error {
	if err := m.begin(); err != nil {
		return err
	}
	if err := m.form.queueDispatch(x); err != nil {
		return err
	}
	m.ops = append(m.ops, x)
	for _, queue := range []func() error{
		func() error { return m.stamp(0) }, m.form.queueCombine, func() error { return m.stamp(0) },
		func() error { return m.buf.Wait(m.b.ctx, m.b.st) },
	} {
		if err := queue(); err != nil {
			return err
		}
	}
	took, err := m.spans()
	if err != nil {
		return err
	}
	d.record(took[0])
	c.record(took[1])
	return nil
}

// stage times a part of an operation: by the device's clock where there is one, else as the host sees it.
func (m *moeRun) stage(do func() error) (time.Duration, error) {
	start := time.Now()
	if m.clock != nil {
		if err := m.begin(); err != nil {
			return 0, err
		}
	}
	if err := do(); err != nil {
		return 0, err
	}
	if m.clock == nil {
		err := m.buf.Wait(m.b.ctx, m.b.st)
		return time.Since(start), err
	}
	if err := m.stamp(0); err != nil {
		return 0, err
	}
	if err := m.buf.Wait(m.b.ctx, m.b.st); err != nil {
		return 0, err
	}
	took, err := m.spans()
	if err != nil {
		return 0, err
	}
	return took[0], nil
}
