// SPDX-License-Identifier: Apache-2.0

// Package gdaki is the host's part of the GDAKI backend: it makes the queue pairs that kernels drive, and hears of those that
// fail. Of what kernels post it sees nothing; only where the NIC is an emulated one does a rank's progress drive it.
package gdaki

import (
	"cmp"
	"context"
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/proxy"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// NIC is a rank's NIC and the queue pairs of its device communicators. The NIC itself is called under the owner's lock.
type NIC struct {
	devnic.NIC
	rank  int
	owner *proxy.Owner
	comms map[*DevComm]struct{}
	pairs map[uint32]of
}

// of says whose a queue pair is, and which of its queues.
type of struct {
	dc    *DevComm
	queue int
}

// Open makes a rank's NIC, which its owner drives from here on. The owner closes it last, in what it is given to end.
func Open(ctx context.Context, p devnic.Provider, c devnic.Config, o *proxy.Owner) (*NIC, error) {
	n := &NIC{rank: c.Rank, owner: o, comms: map[*DevComm]struct{}{}, pairs: map[uint32]of{}}
	c.Failed = n.failed
	var err error
	if n.NIC, err = p.Open(c); err != nil {
		return nil, err
	}
	return n, o.Attach(ctx, n)
}

// Queues is a device communicator's queues as they are asked for.
type Queues struct {
	Contexts, Peers, Depth int
	Companions             bool // each queue pair has one of this rank to itself
	World                  func(queue int) int
	// Their memory, by queue pair, the companions' behind the others'. See devnic.QPConfig.
	Send, Done gpu.Ptr[uint64]
	Far        bool          // Send lies where the host does not see it
	Records    gpu.Ptr[byte] // a line each
	// Ended are words for those of an emulated NIC, by queue: see devnic.QPConfig.
	Ended gpu.Ptr[uint64]
	// Stick sets the status of a queue, where the device finds it.
	Stick func(queue int, s abi.Status)
}

// DevComm is the queue pairs of a device communicator.
type DevComm struct {
	Queues
	proxy.First
	nic    *NIC
	qps    []devnic.QP
	status []abi.Status // by queue, the first that stuck
}

const lineSize = 64

// record is where kernels find the doorbell record of a queue pair.
func (q *Queues) record(i int) gpu.Ptr[uint32] {
	return gpu.Cast[uint32](q.Records.Byte(uint64(i * lineSize))).At(1)
}

// Create makes the queue pairs.
func (n *NIC) Create(ctx context.Context, q Queues) (dc *DevComm, err error) {
	queues := q.Contexts * q.Peers
	dc = &DevComm{Queues: q, nic: n, status: make([]abi.Status, queues)}
	count := queues
	if q.Companions {
		count *= 2
	}
	werr := n.owner.With(ctx, func() {
		n.comms[dc] = struct{}{}
		for i := range count {
			config := devnic.QPConfig{
				Peer: n.rank, Depth: q.Depth, Send: q.Send.At(i * q.Depth * wqe.Words), Done: q.Done.At(i * q.Depth * wqe.Words),
				Record: q.record(i), Far: q.Far,
			}
			if i < queues {
				config.Peer, config.Ended = q.World(i), q.Ended.At(i)
			}
			for k := range q.Depth {
				config.Done.At(k*wqe.Words + wqe.TailWord).Store(uint64(wqe.EmptyTail))
			}
			var qp devnic.QP
			if qp, err = n.NIC.Create(config); err != nil {
				dc.destroy()
				return
			}
			dc.qps = append(dc.qps, qp)
			n.pairs[qp.Number] = of{dc, i % queues}
		}
	})
	if err == nil {
		err = werr
	}
	return dc, err
}

// Addresses are those of the queue pairs to peers, by queue.
func (dc *DevComm) Addresses() [][]byte {
	all := make([][]byte, dc.Contexts*dc.Peers)
	for i := range all {
		all[i] = dc.qps[i].Address
	}
	return all
}

// Connect joins each queue pair to its peer's, whose address theirs says, and each companion to itself. Where theirs says
// that there is none, it stays alone until Settle ends it.
func (dc *DevComm) Connect(ctx context.Context, theirs func(queue int) (address []byte, there bool)) (err error) {
	werr := dc.nic.owner.With(ctx, func() {
		for i := 0; i < len(dc.qps) && err == nil; i++ {
			address, there := dc.qps[i].Address, true
			if i < dc.Contexts*dc.Peers {
				address, there = theirs(i)
			}
			if there {
				err = dc.nic.NIC.Connect(dc.qps[i].Number, address)
			}
		}
	})
	if err == nil {
		err = werr
	}
	return err
}

// Settle ends the queues to ranks that are out, once the device's memory has been filled in, and tells the device again of those
// that ended before.
func (dc *DevComm) Settle(ctx context.Context, out func(rank int) bool) error {
	return dc.nic.owner.With(ctx, func() {
		for q, s := range dc.status {
			if s != abi.OK {
				dc.Stick(q, s)
			} else if out(dc.World(q)) {
				dc.stick(q, abi.Record{Status: uint32(abi.PeerLost)})
			}
		}
	})
}

// Table is the queue pairs as kernels see them.
func (dc *DevComm) Table() []abi.QP {
	table := make([]abi.QP, len(dc.qps))
	for i, q := range dc.qps {
		table[i] = abi.QP{Bell: q.Bell, Record: dc.record(i), Number: q.Number, CQ: q.CQ}
	}
	return table
}

// Close ends the queue pairs, after what was posted to them has ended, or when ctx has ended, with an error. Their memory may
// be given back in either case.
func (dc *DevComm) Close(ctx context.Context) error {
	posted := dc.idle(ctx, dc.destroy)
	return cmp.Or(posted, dc.idle(ctx, func() {})) // what their end itself has the NIC do
}

// idle drives the NIC until the queue pairs have nothing under way, or ctx has ended, with an error. In either case it calls then
// before anything else is driven.
func (dc *DevComm) idle(ctx context.Context, then func()) error {
	n := dc.nic
	for {
		busy, done := 0, ctx.Err() != nil
		// The lock is held for short times only: it needs no deadline.
		err := n.owner.With(context.WithoutCancel(ctx), func() {
			for _, q := range dc.qps {
				if !n.NIC.Idle(q.Number) {
					busy++
				}
			}
			if done = done || busy == 0; done {
				then()
			}
		})
		switch {
		case err != nil:
			return err
		case done && busy > 0:
			return fmt.Errorf("rank %d: close queue pairs: %d of %d have operations that have not ended: %w", n.rank, busy, len(dc.qps), context.Cause(ctx))
		case done:
			return nil
		}
		n.owner.Pass()
	}
}

func (dc *DevComm) destroy() {
	for _, q := range dc.qps {
		dc.nic.NIC.Destroy(q.Number)
		delete(dc.nic.pairs, q.Number)
	}
	delete(dc.nic.comms, dc)
}

// QueueError is a queue pair that failed.
type QueueError struct {
	Rank, Peer, Context int
	Cause               error
}

func (e *QueueError) Error() string {
	return fmt.Sprintf("rank %d: queue pair to rank %d, context %d: %v", e.Rank, e.Peer, e.Context, e.Cause)
}

func (e *QueueError) Unwrap() error { return e.Cause }

// About is whose queue ended by it.
func (e *QueueError) About() (peer, context int) { return e.Peer, e.Context }

// failed is told by the NIC of a queue pair that ended.
func (n *NIC) failed(f devnic.Failure) {
	p, ok := n.pairs[f.QP]
	if !ok {
		return
	}
	s := abi.RemoteError
	if f.PeerGone {
		s = abi.PeerLost
	}
	peer, ctx := p.dc.stick(p.queue, abi.Record{Status: uint32(s), Op: abi.OpWQE, Syndrome: uint32(f.Syndrome)})
	n.owner.Report(&QueueError{Rank: n.rank, Peer: peer, Context: ctx, Cause: f.Err})
}

// stick sets the status of a queue that has none.
func (dc *DevComm) stick(queue int, why abi.Record) (peer, ctx int) {
	peer, ctx = dc.World(queue), queue/dc.Peers
	if dc.status[queue] == abi.OK {
		dc.status[queue] = abi.Status(why.Status)
		why.Peer, why.Ctx = int32(peer), uint32(ctx)
		dc.Note(why)
		dc.Stick(queue, dc.status[queue])
	}
	return peer, ctx
}

// Lose ends the queue pairs to a rank that is lost.
func (n *NIC) Lose(peer int) {
	n.NIC.Lose(peer)
	for dc := range n.comms {
		for q := range dc.Contexts * dc.Peers {
			if dc.World(q) == peer {
				dc.stick(q, abi.Record{Status: uint32(abi.PeerLost)})
			}
		}
	}
}
