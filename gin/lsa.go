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

// LSAPut copies bytes at src into (dst, dstOff) of an LSA peer by stores of the threads that take part. It returns
// when they are issued; a later LSASignal of the same threads, or a barrier, makes them visible at the peer. Invalid:
// a peer that is not in the LSA team, a window that is not registered, an offset and size past its end.
func (c *Context) LSAPut(co Coop, lsaPeer int32, dst Window, dstOff uint64, src gpu.Ptr[byte], bytes uint64) Status {
	if c.id < 0 || lsaPeer < 0 || lsaPeer >= c.dc.LSASize || dst.Info.IsNil() || dst.Gen == 0 {
		return Invalid
	}
	gen, size, to := generation(dst), sizeOf(&dst, dst.LSA0+lsaPeer), LSAPointer(dst, lsaPeer, dstOff)
	word := uint64(0)
	whole := co.kind == coopThread && bytes == 8 && (src.Addr()|dstOff)&7 == 0
	if whole {
		word = gpu.Cast[uint64](src).Load() // beside the look at the generation: see look
	}
	if gen != dst.Gen || !inBounds(dstOff, bytes, size) {
		return Invalid
	}
	if c.dc.Inject == abi.InjectBitFlip || c.dc.Inject == abi.InjectLostPut {
		return c.lsaPutFaulty(co, to, src, bytes)
	}
	if whole && to.Addr()&7 == 0 {
		gpu.Cast[uint64](to).Store(word)
		return OK
	}
	lsaCopy(co, to, src, bytes)
	return OK
}

func lsaCopy(co Coop, to, from gpu.Ptr[byte], bytes uint64) {
	switch co.kind {
	case coopThread:
		gpu.CopyThread(to, from, bytes)
	case coopWarp:
		gpu.CopyWarp(co.t, to, from, bytes)
	case coopBlock:
		gpu.CopyBlock(co.t, to, from, bytes)
	}
}

// lsaPutFaulty is LSAPut when a test asked for a fault: the first put that has bytes loses them, or one bit of them.
func (c *Context) lsaPutFaulty(co Coop, to, from gpu.Ptr[byte], bytes uint64) Status {
	hit := Status(0)
	if co.begin() && bytes > 0 && c.injectNow() {
		hit = 1
	}
	if co.end(hit) == 0 {
		lsaCopy(co, to, from, bytes)
		return OK
	}
	if c.dc.Inject == abi.InjectBitFlip && co.begin() {
		gpu.CopyThread(to, from, bytes)
		to.Store(to.Load() ^ 1)
	}
	return co.end(OK)
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
			word := c.nearLSA.At(int(c.id)*int(c.dc.SignalStride) + int(id))
			gpu.AtomicAdd(word, v, gpu.Release, gpu.ScopeSys)
		}
	}
	return co.end(s)
}
