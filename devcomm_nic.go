// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"context"
	"errors"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/gdaki"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// powers is what that can which carries puts and signals: the network or, in its place, a NIC of hardware, whose queue pairs keep
// order, and whose CQE of a write comes when what is signalled from then on is behind its bytes.
func (c *Comm) powers() netplugin.Powers {
	if c.nic != nil && !c.nic.Facts().Emulated {
		return netplugin.Powers{Ordered: true, RemoteCompletion: true}
	}
	return c.plugin.Powers()
}

// createPairs makes this rank's queue pairs, and registers what their NIC writes here besides signals.
func (dc *DevComm) createPairs(ctx context.Context, p plan) (err error) {
	c := dc.comm
	far := c.nic.Facts().FarQueues && !c.dev.Powers().HostView
	if err = dc.makePairs(ctx, p, far); err != nil && far {
		why := err
		if err = dc.makePairs(ctx, p, false); err == nil {
			c.opt.Log.Warn("send queues lie in memory of the host, where kernels write them more slowly", "rank", c.rank, "why", why)
		}
	}
	if err != nil {
		return err
	}
	home := dc.seg.host.Bytes()[p.home : p.ctr+8*dc.needs.Contexts*p.n.Counters]
	dc.home.comm = c
	if dc.home.export, err = c.export(ctx, home, true); err != nil {
		return err
	}
	var key netplugin.Region
	werr := c.owner.With(ctx, func() {
		key, err = c.memory.Import(c.rank, netplugin.Key{Bytes: dc.home.export, Map: home, Size: len(home)})
	})
	dc.home.regions = []netplugin.Region{key}
	return errors.Join(err, werr)
}

// makePairs makes the queue pairs, whose send queues lie in memory of the device (far) or of the host.
func (dc *DevComm) makePairs(ctx context.Context, p plan, far bool) error {
	c, host, take := dc.comm, dc.seg.host.Ptr(), dc.comm.dev.AllocHost
	if far {
		take = c.dev.Alloc
	}
	send, err := take(p.send)
	if err != nil {
		return err
	}
	world := func(queue int) int {
		peer := queue % p.peers
		if dc.needs.Rail {
			peer = peer*c.lsaSize + c.lsaRank
		}
		return peer
	}
	pairs, err := c.nic.Create(ctx, gdaki.Queues{
		Contexts: dc.needs.Contexts, Peers: p.peers, Depth: p.depth, Companions: p.n.Counters > 0, World: world,
		Send: gpu.Cast[uint64](send.Ptr()), Far: far, Done: gpu.Cast[uint64](host.Byte(uint64(p.cq))), Records: host.Byte(uint64(p.records)),
		Ended: gpu.Cast[uint64](dc.seg.net.Ptr().Byte(uint64(p.ended))), Stick: dc.stick,
	})
	if err != nil {
		return errors.Join(err, send.Free())
	}
	dc.pairs, dc.seg.send = pairs, send
	return nil
}

// connectPairs joins this rank's queue pairs to its peers', whose addresses are by rank and queue. Those to ranks that are out
// stay alone.
func (dc *DevComm) connectPairs(ctx context.Context, p plan, addresses [][][]byte) error {
	me := dc.comm.rank
	if dc.needs.Rail {
		me /= dc.comm.lsaSize
	}
	return dc.pairs.Connect(ctx, func(queue int) (address []byte, there bool) {
		peer := dc.pairs.World(queue)
		if dc.comm.isOut(peer) {
			return nil, false
		}
		return addresses[peer][queue-queue%p.peers+me], true
	})
}

// layOutPairs fills in what kernels need of the NIC; inImage is a place in what becomes the device's memory.
func (dc *DevComm) layOutPairs(p plan, inImage func(off int) gpu.Ptr[byte]) {
	a, dev, depth := &dc.abi, dc.seg.dev.Ptr(), uint64(p.depth)
	a.NIC, a.MaxMessage, a.HomeKey = 1, dc.comm.nic.Facts().MaxMessage, uint32(dc.home.regions[0])
	a.Slots = gpu.Cast[uint64](dc.seg.send.Ptr())
	a.QPs, a.SignalKeys = gpu.Cast[abi.QP](dev.Byte(uint64(p.qps))), gpu.Cast[uint32](dev.Byte(uint64(p.keys)))
	a.CQ = gpu.Cast[uint64](dc.seg.host.Ptr().Byte(uint64(p.cq)))
	for i, q := range dc.pairs.Table() {
		gpu.Cast[abi.QP](inImage(p.qps)).At(i).Store(q)
		gpu.Cast[abi.Producer](inImage(p.prod)).At(i).Store(abi.Producer{Ticket: wqe.FirstIndex, Credit: wqe.FirstIndex + depth, Rung: wqe.FirstIndex})
	}
	for r, k := range dc.regions {
		gpu.Cast[uint32](inImage(p.keys)).At(r).Store(uint32(k))
	}
}
