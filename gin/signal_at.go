// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// ReadSignalAt is the value of this rank's signal at offset off, a multiple of 8, of a signal window: what was added since
// its last reset. Payload that the signal covers is visible. One that is not there reads 0.
func (c *Context) ReadSignalAt(w SignalWindow, off uint64) uint64 {
	if c.id < 0 || !atValid(w.Info, w.Gen, off, c.dc.Rank) {
		return 0
	}
	net, lsa, offset := wordsAt(&w, off)
	return gpu.Load(net, gpu.Acquire, gpu.ScopeSys) + gpu.Load(lsa, gpu.Acquire, gpu.ScopeSys) - offset.Load()
}

// WaitSignalAt is WaitSignal for the signal at offset off of a signal window.
func (c *Context) WaitSignalAt(co Coop, w SignalWindow, off, least uint64, bits int32, src Source) Status {
	s := Invalid
	if co.begin() && c.id >= 0 && bits >= 1 && bits <= 64 && atValid(w.Info, w.Gen, off, c.dc.Rank) {
		net, lsa, offset := wordsAt(&w, off)
		remembered := offset.Load()
		seen := gpu.Load(net, gpu.Acquire, gpu.ScopeSys) + gpu.Load(lsa, gpu.Acquire, gpu.ScopeSys) - remembered
		if s = OK; !rollingLE(least, seen, bits) {
			begin(co.t)
			n := waiter{far: true, note: abi.Record{Op: abi.OpWaitSignalAt, Peer: c.sourcePeer(src), Ctx: uint32(c.id), Window: w.ID, Offset: off, Wanted: least}}
			s = c.waitPair(co.t, net, lsa, remembered, &n, bits, src)
		}
	}
	return co.end(s)
}

// ResetSignalAt makes the signal at offset off 0 from here on. Arrivals may race; it is called while no thread of this rank
// waits for that signal or reads it.
func (c *Context) ResetSignalAt(co Coop, w SignalWindow, off uint64) Status {
	s := Invalid
	if co.begin() && c.id >= 0 && atValid(w.Info, w.Gen, off, c.dc.Rank) {
		net, lsa, offset := wordsAt(&w, off)
		offset.Store(gpu.Load(net, gpu.Acquire, gpu.ScopeSys) + gpu.Load(lsa, gpu.Acquire, gpu.ScopeSys))
		s = OK
	}
	return co.end(s)
}

// LSASignalAt is LSASignal for the signal at offset off of an LSA peer's part of a signal window.
func (c *Context) LSASignalAt(co Coop, lsaPeer int32, w SignalWindow, off, v uint64) Status {
	s := Invalid
	if co.begin() && c.id >= 0 && lsaPeer >= 0 && lsaPeer < c.dc.LSASize && atValid(w.Info, w.Gen, off, w.LSA0+lsaPeer) {
		if c.dc.Inject == abi.InjectDoubleSignal && v != 0 && c.injectNow() {
			v += v
		}
		word := gpu.Cast[uint64](abi.PeerOf(w.Info, w.LSA0+lsaPeer).Raw().Base.Byte(off))
		gpu.AtomicAdd(word, v, gpu.Release, gpu.ScopeSys)
		s = OK
	}
	return co.end(s)
}

// wordsAt are this rank's words of a signal.
func wordsAt(w *SignalWindow, off uint64) (net, lsa, offset gpu.Ptr[uint64]) {
	return gpu.Cast[uint64](w.Net.Byte(off)), gpu.Cast[uint64](w.LSA.Byte(off)), gpu.Cast[uint64](w.Offset.Byte(off))
}
