// SPDX-License-Identifier: Apache-2.0

package dma

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

// gatherMost is how many copies, and how many stores, are gathered at most.
const gatherMost = 32

// Gather hands copies and stores to a device together, so that it does many small ones at once: first those that come out of
// device memory on their way to device memory, then all that go to where they belong, then the stores, in their order. What comes
// of it is as if each were done when it came: before one that would see or undo what another does, what was gathered is queued.
// Addresses tell: of a place that has two, copies by one and by the other are not told apart. One caller at a time uses it. An
// error is the device's and stays.
type Gather struct {
	cp     netplugin.Copier
	room   []byte // pinned, for what is on its way between two places of device memory
	used   int    // of room
	out    copies
	in     copies
	at     [gatherMost]gpu.Ptr[uint64]
	value  [gatherMost]uint64
	stores int
	err    error
}

// copies may be done at once.
type copies struct {
	n        int
	dst, src [gatherMost]gpu.Ptr[byte]
	bytes    [gatherMost]uint64
}

func (c *copies) add(dst, src gpu.Ptr[byte], bytes int) {
	c.dst[c.n], c.src[c.n], c.bytes[c.n] = dst, src, uint64(bytes)
	c.n++
}

// NewGather is one that queues on cp. room is memory of cp.Pinned.
func NewGather(cp netplugin.Copier, room []byte) *Gather { return &Gather{cp: cp, room: room} }

// Copy copies between memory of the device and pinned memory of the host.
func (g *Gather) Copy(dst, src gpu.Ptr[byte], bytes int) error {
	if g.in.n == gatherMost || g.clash(dst, src, bytes) {
		g.Flush()
	}
	g.in.add(dst, src, bytes)
	return g.err
}

// Within copies from the device's memory to the device's memory: through the host's, since a copy within the device might be a
// kernel.
func (g *Gather) Within(dst, src gpu.Ptr[byte], bytes int) error {
	for at := 0; at < bytes; {
		n := min(bytes-at, len(g.room))
		to, from := dst.Byte(uint64(at)), src.Byte(uint64(at))
		if g.in.n == gatherMost || n > len(g.room)-g.used || g.clash(to, from, n) {
			g.Flush()
		}
		slot := gpu.PtrOf(g.room[g.used:])
		g.out.add(slot, from, n)
		g.in.add(to, slot, n)
		g.used = min((g.used+n+255)&^255, len(g.room))
		at += n
	}
	return g.err
}

// Store stores an aligned word when all that came before is visible.
func (g *Gather) Store(at gpu.Ptr[uint64], value uint64) error {
	if g.stores == gatherMost {
		g.Flush()
	}
	g.at[g.stores], g.value[g.stores] = at, value
	g.stores++
	return g.err
}

// clash says whether a copy may not be done at once with those that are gathered, or before the stores.
func (g *Gather) clash(dst, src gpu.Ptr[byte], bytes int) bool {
	n := uint64(bytes)
	for i := range g.in.n {
		to, m := g.in.dst[i], g.in.bytes[i]
		if overlap(to, m, dst, n) || overlap(to, m, src, n) || overlap(g.in.src[i], m, dst, n) {
			return true
		}
	}
	for _, at := range g.at[:g.stores] {
		if word := gpu.Cast[byte](at); overlap(word, 8, dst, n) || overlap(word, 8, src, n) {
			return true
		}
	}
	return false
}

func overlap(a gpu.Ptr[byte], n uint64, b gpu.Ptr[byte], m uint64) bool {
	return b.Addr()-a.Addr() < n || a.Addr()-b.Addr() < m
}

// Flush queues what was gathered.
func (g *Gather) Flush() error {
	for _, c := range []*copies{&g.out, &g.in} {
		if g.err == nil && c.n > 0 {
			g.err = g.cp.Copies(c.dst[:c.n], c.src[:c.n], c.bytes[:c.n])
		}
		c.n = 0
	}
	for i := 0; i < g.stores && g.err == nil; i += 2 {
		if i+1 == g.stores {
			g.err = g.cp.Store(g.at[i], g.value[i])
		} else {
			g.err = g.cp.StoreBoth(g.at[i], g.value[i], g.at[i+1], g.value[i+1])
		}
	}
	g.stores, g.used = 0, 0
	return g.err
}
