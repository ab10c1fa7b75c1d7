// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// Action is what a put does besides: raise one signal of the target, raise one counter of this rank, and how it is
// posted. The zero Action is none of it.
//
// A strong signal becomes visible after every earlier put of the same context to the same peer. A weak one covers only the
// put that it came with, all of it; a network without order gives it sooner. Inc adds 1, Add any number, modulo 2^64.
type Action struct {
	value   uint64
	at      uint64                  // offset of a signal at an address
	info    gpu.Ptr[abi.WindowInfo] // of its window
	window  uint32
	gen     uint32
	signal  int32 // id + 1, less than 0 for an id that cannot be
	counter int32 // the same
	flags   uint8 // abi.Flag*
	skip    bool
}

// plus1 is id + 1, and less than 0 for an id that is negative or has no next.
func plus1(id int32) int32 {
	if id < 0 {
		return id
	}
	return id + 1
}

// None is no action.
func None() Action { return Action{} }

// StrongInc adds 1 to signal id of the target.
func StrongInc(id int32) Action {
	return Action{signal: plus1(id), value: 1, flags: abi.FlagStrong | abi.FlagSignalInc}
}

// StrongAdd adds v to signal id of the target.
func StrongAdd(id int32, v uint64) Action {
	return Action{signal: plus1(id), value: v, flags: abi.FlagStrong | abi.FlagSignalAdd}
}

// WeakInc adds 1 to signal id of the target.
func WeakInc(id int32) Action { return Action{signal: plus1(id), value: 1, flags: abi.FlagSignalInc} }

// WeakAdd adds v to signal id of the target.
func WeakAdd(id int32, v uint64) Action {
	return Action{signal: plus1(id), value: v, flags: abi.FlagSignalAdd}
}

// StrongIncAt adds 1 to the signal at offset off, a multiple of 8, of the target's part of a signal window.
func StrongIncAt(w SignalWindow, off uint64) Action {
	return at(w, off, 1, abi.FlagStrong|abi.FlagSignalInc)
}

// StrongAddAt adds v to the signal at offset off.
func StrongAddAt(w SignalWindow, off, v uint64) Action {
	return at(w, off, v, abi.FlagStrong|abi.FlagSignalAdd)
}

// WeakIncAt adds 1 to the signal at offset off.
func WeakIncAt(w SignalWindow, off uint64) Action { return at(w, off, 1, abi.FlagSignalInc) }

// WeakAddAt adds v to the signal at offset off.
func WeakAddAt(w SignalWindow, off, v uint64) Action { return at(w, off, v, abi.FlagSignalAdd) }

func at(w SignalWindow, off, v uint64, flags uint8) Action {
	return Action{at: off, value: v, info: w.Info, window: w.ID, gen: w.Gen, flags: flags | abi.FlagAtAddress}
}

// Counter also adds 1 to counter id of this rank when the source of this put may be reused. It says nothing of the
// target, and nothing of other puts.
func (a Action) Counter(id int32) Action {
	a.counter = plus1(id)
	if id >= 0 {
		a.flags |= abi.FlagCounter
	}
	return a
}

// Aggregate says that more follows on this context to this peer: the proxy is told of it with the next one that does not
// say so. It is a hint: the put may leave sooner, and leaves within 100 us while progress runs. What it sends has to be
// released before each of them all the same; SetReleased lets one fence do so for many. Where kernels drive a NIC it leaves by
// the next one, or when a thread of the context waits; where OneThread uses it, when that thread does. Nothing else sends it.
func (a Action) Aggregate() Action {
	a.flags |= abi.FlagAggregate
	return a
}

// SkipCredit says that the caller knows of room in the queue: no more than the queue's depth is on its way, by its own
// account of flushes and counters. A post that is wrong about it overwrites descriptors that were not taken yet.
func (a Action) SkipCredit() Action {
	a.skip = true
	return a
}

// raises says whether there is a signal.
func (a *Action) raises() bool { return a.flags&(abi.FlagSignalInc|abi.FlagSignalAdd) != 0 }

// valid says whether what the action names is there, at a rank of the world.
func (c *Context) valid(a *Action, world int32) bool {
	if a.signal < 0 || a.signal > c.dc.Signals || a.counter < 0 || a.counter > c.dc.Counters || uint32(a.flags)&c.dc.Refused != 0 {
		return false
	}
	return a.flags&abi.FlagAtAddress == 0 || atValid(a.info, a.gen, a.at, world)
}

// atValid says whether a rank of the world has a signal at that offset of a window that is registered.
func atValid(info gpu.Ptr[abi.WindowInfo], gen uint32, off uint64, world int32) bool {
	if info.IsNil() || gen == 0 || off&7 != 0 {
		return false
	}
	now := gpu.Load(gpu.PtrTo(&info.Raw().Gen), gpu.Relaxed, gpu.ScopeSys)
	return now == gen && inBounds(off, 8, abi.PeerOf(info, world).Raw().Size)
}

// describe writes into a descriptor what the action says.
func (a *Action) describe(d *abi.Desc) {
	d.Version = abi.DescVersion
	d.Flags = a.flags
	if a.flags&abi.FlagAtAddress != 0 {
		d.SigID, d.SigOff, d.SigGen, d.SigVal = a.window, a.at, a.gen&abi.SigGenMask, a.value
	} else if a.signal > 0 {
		d.SigID, d.SigVal = uint32(a.signal-1), a.value
	}
	if a.counter > 0 {
		d.Counter = uint32(a.counter - 1)
	}
}
