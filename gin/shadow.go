// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// A signal's shadow is a number of this rank alone, one for each (context, signal), which no peer and no network touches:
// what the rank expects the signal to be, so that kernels need not carry it from launch to launch. It is 0 at first, and
// after ResetSignal.

// Shadow is the shadow of signal id. An id that is not there reads 0.
func (c *Context) Shadow(id int32) uint64 {
	if c.id < 0 || id < 0 || id >= c.dc.Signals {
		return 0
	}
	return gpu.Load(c.shadow(id), gpu.Relaxed, gpu.ScopeGPU)
}

// AddShadow adds to the shadow of signal id; threads of the device may do so at once. Invalid: an id that is not there.
func (c *Context) AddShadow(id int32, delta uint64) Status {
	if c.id < 0 || id < 0 || id >= c.dc.Signals {
		return Invalid
	}
	gpu.AtomicAdd(c.shadow(id), delta, gpu.Relaxed, gpu.ScopeGPU)
	return OK
}

// WaitMeet waits until signal id has come to its shadow, as WaitSignal with 64 bits.
func (c *Context) WaitMeet(co Coop, id int32, src Source) Status {
	s := Invalid
	if co.begin() && c.id >= 0 && id >= 0 && id < c.dc.Signals {
		least := gpu.Load(c.shadow(id), gpu.Relaxed, gpu.ScopeGPU)
		s = c.waitWord(co.t, c.word(id), abi.OpWaitSignal, uint32(id), least, 64, src)
	}
	return co.end(s)
}

// WaitFollow waits until signal id is at least least above its shadow, and sets the shadow to what the signal is then.
// before is the shadow as it was, delta by how much it was raised; both are 0 when the status is not OK, and then the
// shadow stays. One group of threads at a time follows a signal.
func (c *Context) WaitFollow(co Coop, id int32, least uint64, src Source) (before, delta uint64, s Status) {
	s = Invalid
	if co.begin() && c.id >= 0 && id >= 0 && id < c.dc.Signals {
		p, i := c.shadow(id), c.word(id)
		was := gpu.Load(p, gpu.Relaxed, gpu.ScopeGPU)
		if s = c.waitWord(co.t, i, abi.OpWaitSignal, uint32(id), was+least, 64, src); s == OK {
			before, delta = was, c.read(i)-was
			gpu.Store(p, was+delta, gpu.Relaxed, gpu.ScopeGPU)
		}
	}
	s = co.end(s)
	return co.share(before), co.share(delta), s
}

// word is the place of signal id of this context in the tables of all.
func (c *Context) word(id int32) int { return int(c.id)*int(c.dc.SignalStride) + int(id) }

func (c *Context) shadow(id int32) gpu.Ptr[uint64] { return c.dc.Shadow.At(c.word(id)) }
