// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// Needs is what a device communicator is to have. Zero fields take the default.
type Needs struct {
	Contexts   int // independent lanes to each peer; default 1, at most 1,024
	Signals    int // per context, ids from 0; at most 1,048,576
	Counters   int // per context, ids from 0; at most 1,048,576
	Barriers   int // of each kind, ids from 0; at most 4,096
	QueueDepth int // operations per context and peer, a power of two, 2 to 65,536 (softnic: 16,384); default DOORBELL_QUEUE_DEPTH
	// Multimem is stores that reach all LSA peers and loads that reduce over them. The software device emulates it. On GPUs it is
	// NVLink multicast, which DOORBELL_MULTIMEM=1 allows, has run on none yet, and takes a GPU for each rank; else it is refused.
	Multimem bool
	// LLA2ABlocks is how many sessions of the low-latency all-to-all there are at once, ids from 0, at most 1,024; LLA2ASlots
	// how many slots of 8 bytes each of them has on each rank and for each epoch, at most 65,536. Both or neither.
	LLA2ABlocks, LLA2ASlots int
	// Rail connects only the ranks with the same LSA rank, one on each node, instead of all.
	Rail bool
	// SmallPut is the size up to which a payload travels with its descriptor, 8 to 256 bytes; default 8 on the software
	// device, where the host reads the source as well as the device does.
	SmallPut int
	// Sharing says which threads use a context at once; each of them pays for what it does not rule out.
	Sharing Sharing
	// WeakOnly says that kernels raise weak signals alone: strong ones are Invalid, and a network that cannot give them will
	// do. On one that neither keeps order nor tells what is complete at its target, a put with a signal that is larger than
	// the network's largest operation is refused (RemoteError).
	WeakOnly bool
	// Fence says that kernels call Context.FenceContexts. It needs a network that tells when bytes are at the target.
	Fence bool
	// TrafficClass is what the network marks its packets with (DSCP and ECN, the IP header's traffic class), 0 to 255; 0 for
	// what the communicator has (Options.TrafficClass), which is the only other value that is accepted.
	TrafficClass int
	// Teams are the teams whose ranks post to each other, besides world, LSA and rail: one that this cannot be is refused.
	Teams []TeamNeeds
	// Resources are named ranges of ids behind the ones above: see DevComm.Resource.
	Resources []Resource
}

// TeamNeeds cuts the world into teams of Ranks ranks each, Stride apart: rank r is in the team of the ranks q with the same
// q / (Ranks*Stride) and q % Stride, as gin's World(dc).Inner(Ranks*Stride).Outer(Stride) is.
type TeamNeeds struct{ Ranks, Stride int }

// Resource is what one part of a program, a library say, needs for itself in a device communicator that it shares.
type Resource struct {
	Name                        string
	Signals, Counters, Barriers int // as those of Needs
}

// IDs are the first ids of a Resource.
type IDs struct{ Signal, Counter, Barrier int32 }

// Sharing is which threads use a context at once.
type Sharing int

// Sharings.
const (
	// SharedByAll: any threads of the device. A put takes its place in the queue by an atomic, 0.3 us on an H200.
	SharedByAll Sharing = abi.ShareGPU
	// OneThread: one thread at a time posts to a context, and a wait, a barrier or the end of a kernel stands between one and
	// the next. Two that post at once lose puts; the checks of the software device's race detector see it.
	OneThread Sharing = abi.ShareThread
	// OneBlock: threads of one block at a time post to a context. Their atomics reach no further than it.
	OneBlock Sharing = abi.ShareBlock
)

// Limits of Needs.
const (
	maxContexts = 1024
	maxIDs      = 1 << 20
	maxBarriers = 4096
	maxDepth    = 1 << 16
	maxLLBlocks = 1024
	maxLLSlots  = 1 << 16
)

// fill puts the default where a field is zero. The error is of the variable that one is taken from.
func (n *Needs) fill() (err error) {
	n.Contexts, n.SmallPut = cmp.Or(n.Contexts, 1), cmp.Or(n.SmallPut, 8)
	if n.QueueDepth == 0 {
		n.QueueDepth, err = env.QueueDepth.Get(os.LookupEnv)
	}
	return err
}

// total is the needs with those of its resources added, and none of them.
func (n Needs) total() Needs {
	for _, r := range n.Resources {
		n.Signals, n.Counters, n.Barriers = n.Signals+r.Signals, n.Counters+r.Counters, n.Barriers+r.Barriers
	}
	n.Resources = nil
	return n
}

func (n *Needs) check() error {
	for _, r := range n.Resources {
		if r.Name == "" || min(r.Signals, r.Counters, r.Barriers) < 0 || max(r.Signals, r.Counters, r.Barriers) > maxIDs {
			return fmt.Errorf("resource %q asks for %d signals, %d counters and %d barriers: a name and 0 to %d of each are accepted", r.Name, r.Signals, r.Counters, r.Barriers, maxIDs)
		}
	}
	sum := n.total()
	for _, f := range []struct {
		name         string
		v, low, high int
	}{
		{"contexts", n.Contexts, 1, maxContexts}, {"signals", sum.Signals, 0, maxIDs}, {"counters", sum.Counters, 0, maxIDs},
		{"barriers", sum.Barriers, 0, maxBarriers}, {"queue depth", n.QueueDepth, 2, maxDepth}, {"small put", n.SmallPut, 8, abi.CellPayload},
		{"LLA2A blocks", n.LLA2ABlocks, 0, maxLLBlocks}, {"LLA2A slots", n.LLA2ASlots, 0, maxLLSlots},
	} {
		if f.v < f.low || f.v > f.high {
			return fmt.Errorf("%d %s asked for, %d to %d are accepted", f.v, f.name, f.low, f.high)
		}
	}
	if n.Sharing < SharedByAll || n.Sharing > OneBlock {
		return fmt.Errorf("sharing %d asked for, SharedByAll (%d), OneThread (%d) and OneBlock (%d) are accepted", n.Sharing, SharedByAll, OneThread, OneBlock)
	}
	if (n.LLA2ABlocks == 0) != (n.LLA2ASlots == 0) {
		return fmt.Errorf("%d LLA2A blocks of %d slots asked for, both or neither is accepted", n.LLA2ABlocks, n.LLA2ASlots)
	}
	if n.QueueDepth&(n.QueueDepth-1) != 0 {
		return fmt.Errorf("queue depth %d asked for, a power of two is accepted", n.QueueDepth)
	}
	return nil
}

// given refuses what the network and the communicator do not give.
func (n *Needs) given(net string, p netplugin.Powers, ranks, lsa, class int) error {
	var errs []error
	if !p.Ordered && !p.RemoteCompletion && !n.WeakOnly {
		errs = append(errs, fmt.Errorf("strong signals: network %s keeps no order and does not tell what is complete; it gives weak ones (Needs.WeakOnly)", net))
	}
	if n.Fence && !p.RemoteCompletion {
		errs = append(errs, fmt.Errorf("a fence over contexts: network %s does not tell what is complete at its target; it gives strong signals within a context", net))
	}
	if n.TrafficClass != 0 && n.TrafficClass != class {
		errs = append(errs, fmt.Errorf("traffic class %d: this communicator's is %d (Options.TrafficClass); that and 0 are accepted", n.TrafficClass, class))
	}
	for _, t := range n.Teams {
		switch {
		case t.Ranks < 1 || t.Stride < 1 || t.Ranks > ranks/t.Stride || ranks%(t.Ranks*t.Stride) != 0:
			errs = append(errs, fmt.Errorf("teams of %d ranks %d apart: a product that divides the world's %d ranks is accepted", t.Ranks, t.Stride, ranks))
		case n.Rail && t.Ranks > 1 && t.Stride%lsa != 0:
			errs = append(errs, fmt.Errorf("teams of %d ranks %d apart: with Rail a rank reaches those a multiple of %d away", t.Ranks, t.Stride, lsa))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w: %w", ErrCannot, errors.Join(errs...))
	}
	return nil
}

// plan says where each part of a device communicator lies, in four segments: words that peers raise through the network
// (net), and words that LSA peers write (peer); of this rank alone, what device threads use among themselves (dev), and what
// they share with the host (host). See abi.DevComm.
type plan struct {
	n                               Needs
	ranks, lsa, peers, queues       int
	depth                           int // slots of a queue
	stride                          int // signal words per context
	net, ended                      int // ended is in it
	lsaWords, inbox, ll, peer       int
	prod, status, lost, ctl         int
	off, shadow, coff, barrier      int
	peerLSA, peerInbox, peerLL      int
	llState, qps, keys, dev         int
	slots, cells, hints, index, ctr int
	cq, records, home               int
	notes, host                     int
	send                            int // bytes of the send queues of a NIC
}

// nicPage is what a NIC registers memory by, bytes.
const nicPage = 4096

// newPlan plans for kernels that drive a NIC, or for the proxy.
func newPlan(n Needs, ranks, lsa int, nic bool) plan {
	n = n.total()
	p := plan{n: n, ranks: ranks, lsa: lsa, peers: ranks}
	if n.Rail {
		p.peers = ranks / lsa
	}
	p.queues = n.Contexts * p.peers
	pairs := 0 // queue pairs
	p.depth = n.QueueDepth
	if nic {
		p.depth *= 2 // a put and its signal are two WQEs, and so is what raises a counter
		if pairs = p.queues; n.Counters > 0 {
			pairs *= 2
		}
		n.SmallPut = 8 // what a WQE carries; there are no cells
	}
	p.n.SmallPut = n.SmallPut
	p.stride = n.Signals + n.Barriers*ranks
	words := n.Contexts * p.stride

	at := 0
	take := func(bytes int) int {
		off := at
		at += (bytes + 63) &^ 63 // no two writers share a line
		return off
	}
	take(8 * words)
	if nic {
		p.ended = take(8 * p.queues)
	}
	p.net, at = max(at, 64), 0
	p.lsaWords, p.inbox, p.ll = take(8*words), take(8*n.Barriers*lsa), take(2*8*abi.LLSlotWords*n.LLA2ABlocks*n.LLA2ASlots)
	p.peer, at = max(at, 64), 0

	p.prod = take(64 * max(pairs, p.queues))
	p.status, p.lost, p.ctl = take(4*p.queues), take(4*ranks), take(64)
	p.off, p.shadow, p.coff = take(8*words), take(8*words), take(8*n.Contexts*n.Counters)
	p.barrier = take(64 * (1 + n.Contexts) * n.Barriers)
	p.peerLSA, p.peerInbox, p.peerLL = take(8*lsa), take(8*lsa), take(8*lsa)
	p.llState = take(64 * n.LLA2ABlocks)
	if nic {
		p.qps, p.keys = take(64*pairs), take(4*ranks)
	}
	p.dev, at = at, 0
	p.home, p.ctr = take(abi.HomeCounters), take(8*n.Contexts*n.Counters) // one behind the other, at a page: a NIC's region begins there
	if nic {
		p.send = (wqe.Bytes*p.depth*pairs + nicPage - 1) &^ (nicPage - 1)
	} else {
		p.slots = take(abi.DescBytes * p.depth * p.queues)
	}
	if n.SmallPut > 8 {
		p.cells = take(8 * abi.CellWords * p.depth * p.queues)
	}
	p.cq, p.records = take(wqe.Bytes*p.depth*pairs), take(64*pairs)
	p.hints, p.index = take(4*p.queues), take(64*p.queues)
	p.notes = take(128)
	p.host = at
	return p
}

// MemoryBytes is what a device communicator with these needs, defaults filled in, takes of each rank's memory:
//
//	queues = contexts * (ranks, or nodes with Rail)
//	64*depth*queues (descriptors) + 320*depth*queues (cells, if SmallPut > 8) + 136*queues
//	+ 32*contexts*(signals + barriers*ranks) + 16*contexts*counters + 64*(1+contexts)*barriers
//	+ 32*blocks*slots + 64*blocks (LLA2A) + small tables
//
// With the backend gdaki descriptors take 256*depth*queues, and where there are counters twice that; there are no cells.
func (n Needs) MemoryBytes(ranks, lsaSize int) int {
	_ = n.fill() // DevComm says it
	p := newPlan(n, max(ranks, 1), max(lsaSize, 1), false)
	return p.net + p.peer + p.dev + p.host
}
