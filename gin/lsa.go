// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// LSAPointer is the address of byte off of an LSA peer's part of a window. It is not checked.
func LSAPointer(w Window, lsaPeer int32, off uint64) gpu.Ptr[byte] {
	return gpu.PtrTo(&w.Peer(w.LSA0 + lsaPeer).Raw().Base).Load().Byte(off)
}

// LSAArea is the address of (dst, dstOff) of an LSA peer, where so many bytes may be stored: what LSAPut looks at before it stores,
// for who looks in good time and copies later, by LSACopy. It is Invalid for what LSAPut is Invalid for.
func (c *Context) LSAArea(lsaPeer int32, dst Window, dstOff, bytes uint64) (gpu.Ptr[byte], Status) {
	if !c.stores(lsaPeer, &dst) {
		return gpu.Ptr[byte]{}, Invalid
	}
	return areaOf(dst, lsaPeer, dstOff, bytes)
}

// stores says whether there may be such a peer and window.
func (c *Context) stores(lsaPeer int32, dst *Window) bool {
	return c.id >= 0 && lsaPeer >= 0 && lsaPeer < c.dc.LSASize && !dst.Info.IsNil() && dst.Gen != 0
}

func areaOf(dst Window, lsaPeer int32, off, bytes uint64) (gpu.Ptr[byte], Status) {
	gen, size, to := generation(dst), sizeOf(&dst, dst.LSA0+lsaPeer), baseOf(&dst, dst.LSA0+lsaPeer).Byte(off)
	if gen != dst.Gen || !inBounds(off, bytes, size) {
		return gpu.Ptr[byte]{}, Invalid
	}
	return to, OK
}

// LSAPut copies bytes at src into (dst, dstOff) of an LSA peer by stores of the threads that take part. It returns
// when they are issued; a later LSASignal of the same threads, or a barrier, makes them visible at the peer. Invalid:
// a peer that is not in the LSA team, a window that is not registered, an offset and size past its end.
func (c *Context) LSAPut(co Coop, lsaPeer int32, dst Window, dstOff uint64, src gpu.Ptr[byte], bytes uint64) Status {
	if !c.stores(lsaPeer, &dst) {
		return Invalid
	}
	word := uint64(0)
	whole := co.kind == coopThread && bytes == 8 && (src.Addr()|dstOff)&7 == 0
	if whole {
		word = early(gpu.Cast[uint64](src)) // see look; first, since what hangs on a condition is put behind the rest's arrival
	}
	to, s := areaOf(dst, lsaPeer, dstOff, bytes)
	if s != OK {
		return s
	}
	if whole && to.Addr()&7 == 0 && c.dc.Inject == abi.InjectNone {
		gpu.Cast[uint64](to).Store(word)
		return OK
	}
	c.LSACopy(co, to, src, bytes)
	return OK
}

// LSACopy is LSAPut's copy, to where LSAArea says.
func (c *Context) LSACopy(co Coop, to, from gpu.Ptr[byte], bytes uint64) {
	bad := Status(OK)
	if c.dc.Inject == abi.InjectBitFlip || c.dc.Inject == abi.InjectLostPut {
		if bad = c.faulty(co, bytes); bad != OK && c.dc.Inject == abi.InjectLostPut {
			bytes = 0
		}
	}
	switch co.kind {
	case coopThread:
		gpu.CopyThread(to, from, bytes)
	case coopWarp:
		gpu.CopyWarp(co.t, to, from, bytes)
	case coopBlock:
		gpu.CopyBlock(co.t, to, from, bytes)
	}
	if bad != OK && bytes > 0 && co.begin() {
		to.Store(to.Load() ^ 1)
	}
}

// faulty is not OK for the first put that has bytes, when a test asked for a fault: it loses them, or one bit of them.
func (c *Context) faulty(co Coop, bytes uint64) Status {
	hit := OK
	if co.begin() && bytes > 0 && c.injectNow() {
		hit = Invalid
	}
	return co.end(hit)
}

// injectNow is true once.
func (c *Context) injectNow() bool {
	return gpu.AtomicExch(gpu.PtrTo(&c.dc.Control.Raw().Injected), 1, gpu.Relaxed, gpu.ScopeGPU) == 0
}

// LSASignal adds v to signal id, of this context, of an LSA peer. What the threads that take part stored before, there
// or elsewhere, is visible to who sees the signal.
func (c *Context) LSASignal(co Coop, lsaPeer, id int32, v uint64) Status {
	s := OK
	if co.begin() {
		if c.id < 0 || lsaPeer < 0 || lsaPeer >= c.dc.LSASize || id < 0 || id >= c.dc.Signals {
			s = Invalid
		} else {
			if c.dc.Inject == abi.InjectDoubleSignal && v != 0 && c.injectNow() {
				v += v
			}
			if c.near != lsaPeer+1 {
				c.near, c.nearLSA = lsaPeer+1, c.dc.PeerLSA.At(int(lsaPeer)).Load()
			}
			word := c.nearLSA.At(c.word(id))
			gpu.AtomicAdd(word, v, gpu.Release, gpu.ScopeSys)
		}
	}
	return co.end(s)
}
