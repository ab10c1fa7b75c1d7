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
// of it is as if each were done when it came: a copy that may not be done at once with one before it is queued behind that one, and
// before what would come too late even so, what was gathered is queued. Of stores to one word that nothing comes between, the last
// is made. Addresses tell: of a place that has two, copies by one and by the other are not told apart. One caller at a time uses
// it. An error is the device's and stays.
type Gather struct {
	cp     netplugin.Copier
	room   []byte // pinned, for what is on its way between two places of device memory
	used   int    // of room
	out    copies
	in     copies
	behind [gatherMost]bool // of in: not at once with those before it
	at     [gatherMost]gpu.Ptr[uint64]
	value  [gatherMost]uint64
	stores int
	before written
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

// RoomBytes is what a Gather is given room for: copies within the device that are gathered, or the two pieces of a long one.
const RoomBytes = 2 << 20

// NewGather is one that queues on cp. room is memory of cp.Pinned, of RoomBytes.
func NewGather(cp netplugin.Copier, room []byte) *Gather { return &Gather{cp: cp, room: room} }

// Copy copies between memory of the device and pinned memory of the host.
func (g *Gather) Copy(dst, src gpu.Ptr[byte], bytes int) error {
	if g.in.n == gatherMost || g.stored(dst, src, bytes) {
		g.Flush()
	}
	g.add(dst, src, bytes)
	return g.err
}

// Within copies from the device's memory to the device's memory: through the host's, since a copy within the device might be a
// kernel.
func (g *Gather) Within(dst, src gpu.Ptr[byte], bytes int) error {
	if bytes > len(g.room)/2 {
		return g.long(dst, src, bytes)
	}
	if g.in.n == gatherMost || bytes > len(g.room)-g.used || g.written(src, bytes) || g.stored(dst, src, bytes) {
		g.Flush()
	}
	slot := gpu.PtrOf(g.room[g.used:])
	g.out.add(slot, src, bytes)
	g.add(dst, slot, bytes)
	g.used = min((g.used+bytes+255)&^255, len(g.room))
	return g.err
}

// Store stores an aligned word when all that came before is visible.
func (g *Gather) Store(at gpu.Ptr[uint64], value uint64) error {
	if last := g.stores - 1; last >= 0 && g.at[last].Addr() == at.Addr() {
		g.value[last] = value
		return g.err
	}
	if g.stores == gatherMost {
		g.Flush()
	}
	g.at[g.stores], g.value[g.stores] = at, value
	g.stores++
	return g.err
}

// add gathers a copy to where it belongs, behind those that it may not be done at once with.
func (g *Gather) add(dst, src gpu.Ptr[byte], bytes int) {
	g.behind[g.in.n] = g.clash(dst, src, bytes)
	g.in.add(dst, src, bytes)
}

// clash says whether a copy may not be done at once with those that the last one is done at once with.
func (g *Gather) clash(dst, src gpu.Ptr[byte], bytes int) bool {
	n := uint64(bytes)
	for i := g.in.n - 1; i >= 0; i-- {
		to, m := g.in.dst[i], g.in.bytes[i]
		if overlap(to, m, dst, n) || overlap(to, m, src, n) || overlap(g.in.src[i], m, dst, n) {
			return true
		}
		if g.behind[i] {
			break
		}
	}
	return false
}

// written says whether a copy that is gathered writes what is to come out of device memory before all of them.
func (g *Gather) written(src gpu.Ptr[byte], bytes int) bool {
	for i, to := range g.in.dst[:g.in.n] {
		if overlap(to, g.in.bytes[i], src, uint64(bytes)) {
			return true
		}
	}
	return false
}

// stored says whether a copy has to do with a word whose store was gathered before it.
func (g *Gather) stored(dst, src gpu.Ptr[byte], bytes int) bool {
	n := uint64(bytes)
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
	g.queue(&g.out, 0, g.out.n)
	g.before.roomUsed = g.before.roomUsed || g.out.n > 0
	for from, to := 0, 0; from < g.in.n; from = to {
		for to++; to < g.in.n && !g.behind[to]; to++ {
		}
		g.queue(&g.in, from, to)
	}
	for i, dst := range g.in.dst[:g.in.n] {
		g.before.note(dst, g.in.bytes[i])
	}
	for i := 0; i < g.stores && g.err == nil; i += 2 {
		if i+1 == g.stores {
			g.err = g.cp.Store(g.at[i], g.value[i])
		} else {
			g.err = g.cp.StoreBoth(g.at[i], g.value[i], g.at[i+1], g.value[i+1])
		}
	}
	for _, at := range g.at[:g.stores] {
		g.before.note(gpu.Cast[byte](at), 8)
	}
	g.out.n, g.in.n, g.stores, g.used = 0, 0, 0, 0
	return g.err
}

// queue queues some of the copies at once.
func (g *Gather) queue(c *copies, from, to int) {
	if g.err == nil && from < to {
		g.err = g.cp.Copies(c.dst[from:to], c.src[from:to], c.bytes[from:to])
	}
}
