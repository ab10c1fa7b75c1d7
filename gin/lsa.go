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
	base, ok := partOf(&dst, lsaPeer, dstOff, bytes)
	if !ok {
		return gpu.Ptr[byte]{}, Invalid
	}
	return base.Byte(dstOff), OK
}

// stores says whether there may be such a peer and window.
func (c *Context) stores(lsaPeer int32, dst *Window) bool {
	return c.id >= 0 && lsaPeer >= 0 && lsaPeer < c.dc.LSASize && !dst.Info.IsNil() && dst.Gen != 0
}

// partOf is where an LSA peer's part of a window begins, and whether the window is registered and has so many bytes at off there.
// In another order of the loads ptxas, short of registers, looks at what one brought before it begins the next.
func partOf(w *Window, lsaPeer int32, off, bytes uint64) (base gpu.Ptr[byte], ok bool) {
	gen, base, size := generation(*w), baseOf(w, w.LSA0+lsaPeer), sizeOf(w, w.LSA0+lsaPeer)
	return base, gen == w.Gen && inBounds(off, bytes, size)
}

// atOnce is how many times 16 bytes each thread of a short put has on their way.
const atOnce = 4

// LSAPut copies bytes at src into (dst, dstOff) of an LSA peer by stores of the threads that take part. It returns
// when they are issued; a later LSASignal of the same threads, or a barrier, makes them visible at the peer. Invalid:
// a peer that is not in the LSA team, a window that is not registered, an offset and size past its end. What is at src may
// have been read then.
func (c *Context) LSAPut(co Coop, lsaPeer int32, dst Window, dstOff uint64, src gpu.Ptr[byte], bytes uint64) Status {
	if !c.stores(lsaPeer, &dst) {
		return Invalid
	}
	// What is short is on its way while the window is looked at (see early), and comes first, since what hangs on a condition is put
	// behind the rest's arrival.
	i, threads := co.index()
	offs, whole := src.Addr()|dstOff, c.dc.Inject == abi.InjectNone
	switch {
	case whole && bytes == 8 && offs&7 == 0:
		word := early(gpu.Cast[uint64](src))
		base, ok := partOf(&dst, lsaPeer, dstOff, bytes)
		if ok && base.Addr()&7 == 0 {
			if i == 0 {
				gpu.Cast[uint64](base.Byte(dstOff)).Store(word)
			}
			return OK
		}
	case whole && bytes&15 == 0 && bytes <= 16*atOnce*threads && offs&15 == 0:
		// Each warp has a piece of its own: so all addresses of a thread are one and a constant.
		lanes := uint32(gpu.WarpSize)
		if co.alone() {
			lanes = 1
		}
		lane := uint32(i) & (lanes - 1)
		first := 16 * (atOnce*(uint32(i)-lane) + lane)
		var v [atOnce]gpu.U32x4
		for k := range v {
			if at := first + 16*lanes*uint32(k); at < uint32(bytes) {
				v[k] = gpu.LoadEarly(gpu.Cast[gpu.U32x4](src.Byte(uint64(at))))
			}
		}
		base, ok := partOf(&dst, lsaPeer, dstOff, bytes)
		if ok && base.Addr()&15 == 0 {
			for k := range v {
				if at := first + 16*lanes*uint32(k); at < uint32(bytes) {
					gpu.Cast[gpu.U32x4](base.Byte(dstOff + uint64(at))).Store(v[k])
				}
			}
			return OK
		}
	}
	base, ok := partOf(&dst, lsaPeer, dstOff, bytes)
	if !ok {
		return Invalid
	}
	c.LSACopy(co, base.Byte(dstOff), src, bytes)
	return OK
}

// LSACopy is LSAPut's copy, to where LSAArea says.
func (c *Context) LSACopy(co Coop, to, from gpu.Ptr[byte], bytes uint64) {
	flip := false
	if c.dc.Inject == abi.InjectBitFlip || c.dc.Inject == abi.InjectLostPut {
		flip = c.faulty(co, bytes)
		if flip && c.dc.Inject == abi.InjectLostPut {
			return
		}
	}
	switch co.kind {
	case coopWarp:
		gpu.CopyWarp(co.t, to, from, bytes)
	case coopBlock:
		gpu.CopyBlock(co.t, to, from, bytes)
	default:
		gpu.CopyThread(to, from, bytes)
	}
	if flip && co.begin() {
		to.Store(to.Load() ^ 1)
	}
}

// faulty is true for the first put that has bytes, when a test asked for a fault: it loses them, or one bit of them.
func (c *Context) faulty(co Coop, bytes uint64) bool {
	hit := OK
	if co.begin() && bytes > 0 && c.injectNow() {
		hit = Invalid
	}
	return co.end(hit) != OK
}

// injectNow is true once.
func (c *Context) injectNow() bool {
	return gpu.AtomicExch(gpu.PtrTo(&c.dc.Control.Raw().Injected), 1, gpu.Relaxed, gpu.ScopeGPU) == 0
}

// LSASignal adds v to signal id, of this context, of an LSA peer. What the threads that take part stored before, there
// or elsewhere, is visible to who sees the signal.
//
// Each thread knows the status by itself, and none waits until the one that raises the signal has done so: what another of them
// signals alone after that may be seen first.
func (c *Context) LSASignal(co Coop, lsaPeer, id int32, v uint64) Status {
	raises := co.begin()
	if c.id < 0 || lsaPeer < 0 || lsaPeer >= c.dc.LSASize || id < 0 || id >= c.dc.Signals {
		return Invalid
	}
	if raises {
		if c.near != lsaPeer+1 {
			v = c.turnTo(lsaPeer, v)
		}
		gpu.AtomicAdd(c.nearLSA.At(c.word(id)), v, gpu.Release, gpu.ScopeSys)
	}
	return OK
}

// turnTo looks up an LSA peer's signal words, for this signal and those to it that follow at once. It doubles the first signal when a
// test asked for that: then each comes here.
func (c *Context) turnTo(lsaPeer int32, v uint64) uint64 {
	c.nearLSA = c.dc.PeerLSA.At(int(lsaPeer)).Load()
	if c.dc.Inject != abi.InjectDoubleSignal {
		c.near = lsaPeer + 1
	} else if v != 0 && c.injectNow() {
		return 2 * v
	}
	return v
}
