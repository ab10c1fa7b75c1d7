// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/bootstrap"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/proxy"
	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/netplugin"
)

// DevComm is a device communicator: the queues, signals, counters and barriers that kernels use.
type DevComm struct {
	comm        *Comm
	needs       Needs
	abi         abi.DevComm
	proxy       *proxy.DevComm
	shared, own device.Memory
	maps        []device.Memory
	regions     []netplugin.Region
	export      []byte
	mu          sync.Mutex // closing against marking
	closed      bool
}

// signalOffer is what a rank says of its signals.
type signalOffer struct {
	Err   string
	Needs Needs
	offer
}

// deviceCommunicator is what the call of that name is called in messages and between ranks.
const deviceCommunicator = "device communicator"

// DevComm makes a device communicator. Collective: each rank asks for the same. If it fails on one rank it fails on
// all, with that rank's reason.
func (c *Comm) DevComm(ctx context.Context, n Needs) (*DevComm, error) {
	err := c.live(deviceCommunicator)
	if err != nil {
		return nil, err
	}
	depth, err := env.QueueDepth.Get(os.LookupEnv)
	n.fill(depth)
	dc := &DevComm{comm: c, needs: n}
	if err = cmp.Or(err, n.check()); err == nil {
		p := newPlan(n, c.size, c.lsaSize)
		err = dc.alloc(p)
		if err == nil {
			err = dc.connect(ctx, p)
		} else {
			err = c.refuse(ctx, deviceCommunicator, err)
		}
	} else {
		err = c.refuse(ctx, deviceCommunicator, err)
	}
	if err != nil {
		err = errors.Join(err, dc.free())
		return nil, fmt.Errorf("rank %d: %s: %w", c.rank, deviceCommunicator, err)
	}
	c.mu.Lock()
	c.devComms[dc] = struct{}{}
	ended := c.ended
	for r := range c.lost {
		dc.lose(r)
	}
	c.mu.Unlock()
	if ended != abi.OK {
		dc.end(ended)
	}
	return dc, nil
}

func (dc *DevComm) alloc(p plan) (err error) {
	if have, ok := sys.MemAvailable(); ok && uint64(p.shared)+uint64(p.own) > have {
		return fmt.Errorf("need %d bytes, have %d: %w", p.shared+p.own, have, ErrOutOfMemory) // before any of it is taken
	}
	if dc.shared, err = dc.comm.dev.Alloc(p.shared); err != nil {
		return err
	}
	dc.own, err = dc.comm.dev.Alloc(p.own)
	return err
}

// connect exchanges the signals' memory and starts the proxy.
func (dc *DevComm) connect(ctx context.Context, p plan) error {
	c := dc.comm
	export, err := c.export(ctx, dc.shared.Bytes(), true)
	if err != nil {
		return c.refuse(ctx, deviceCommunicator, err)
	}
	dc.export = export
	size := len(dc.shared.Bytes())
	blob, err := handleBlob(dc.shared.Handle(), signalOffer{Needs: dc.needs, offer: offer{Bytes: size, Size: size, Export: export}})
	if err != nil {
		return c.refuse(ctx, deviceCommunicator, err)
	}
	offers := make([]offer, c.size)
	err = c.exchange(ctx, deviceCommunicator, blob, func(r int, b bootstrap.Blob) error {
		var s signalOffer
		if err := json.Unmarshal(b.Bytes, &s); err != nil {
			return err
		}
		if s.Needs != dc.needs {
			return fmt.Errorf("rank %d needs %+v, rank %d %+v: they must agree", c.rank, dc.needs, r, s.Needs)
		}
		offers[r] = s.offer
		return nil
	}, func(blobs []bootstrap.Blob) error {
		dc.maps, dc.regions, err = c.importAll(ctx, blobs, offers)
		return err
	})
	if err != nil {
		return err
	}
	dc.layOut(p)
	c.mu.Lock()
	base := c.nextCtx
	c.nextCtx += int32(dc.needs.Contexts)
	c.mu.Unlock()
	dc.proxy = &proxy.DevComm{ABI: dc.abi, Context: base, Signals: dc.regions, Net: c.endpoint, MaxBytes: c.plugin.Powers().MaxBytes, Polled: c.plugin.Powers().Polled}
	return c.owner.AddDevComm(ctx, dc.proxy)
}

// layOut fills in the structure that kernels get, and the tables it points at.
func (dc *DevComm) layOut(p plan) {
	c, n := dc.comm, dc.needs
	at := func(m device.Memory, off int) gpu.Ptr[byte] { return m.Ptr().Byte(uint64(off)) }
	word := func(m device.Memory, off int) gpu.Ptr[uint64] { return gpu.Cast[uint64](at(m, off)) }
	half := func(off int) gpu.Ptr[uint32] { return gpu.Cast[uint32](at(dc.own, off)) }
	a := &dc.abi
	*a = abi.DevComm{
		Version: abi.DevCommVersion, Rank: int32(c.rank), Ranks: int32(c.size), LSARank: int32(c.lsaRank), LSASize: int32(c.lsaSize),
		Contexts: int32(n.Contexts), Signals: int32(n.Signals), Counters: int32(n.Counters), Barriers: int32(n.Barriers),
		Peers: int32(p.peers), SignalStride: uint32(p.stride), CellPayload: uint32(n.SmallPut), Looks: 64, Timeout: uint64(c.opt.Timeout),
		Queues: gpu.Cast[abi.Queue](at(dc.own, p.table)), Status: half(p.status), Lost: half(p.lost),
		Control: gpu.Cast[abi.Control](at(dc.own, p.ctl)),
		Net:     word(dc.shared, p.net), LSA: word(dc.shared, p.lsaWords), Inbox: word(dc.shared, p.inbox),
		SigOffset: word(dc.own, p.off), Shadow: word(dc.own, p.shadow),
		Counter: word(dc.own, p.ctr), CounterOffset: word(dc.own, p.coff),
		PeerLSA: gpu.Cast[gpu.Ptr[uint64]](at(dc.own, p.peerLSA)), PeerInbox: gpu.Cast[gpu.Ptr[uint64]](at(dc.own, p.peerInbox)),
		Barrier: gpu.Cast[abi.BarrierState](at(dc.own, p.barrier)), Asleep: gpu.PtrTo(c.engine.Asleep()),
	}
	if n.Rail {
		a.Railed = 1
	}
	if c.plugin.Powers().Polled && c.engine.Mode() == proxy.Assisted {
		a.Looks = 1 // the waiting thread is the one that looks at the network
	}
	if c.rank == 0 {
		a.Inject = map[string]uint32{netplugin.InjectBitFlip: abi.InjectBitFlip, netplugin.InjectLostPut: abi.InjectLostPut,
			netplugin.InjectDoubleSignal: abi.InjectDoubleSignal}[c.opt.Inject]
	}
	for i := range c.lsaSize {
		m := dc.maps[c.rank-c.lsaRank+i]
		if i == c.lsaRank {
			m = dc.shared
		}
		a.PeerLSA.At(i).Store(word(m, p.lsaWords))
		a.PeerInbox.At(i).Store(word(m, p.inbox))
	}
	depth := uint64(n.QueueDepth)
	for i := range p.queues {
		q := a.Queues.At(i).Raw()
		*q = abi.Queue{
			Slots: word(dc.own, p.slots).At(i * n.QueueDepth * abi.DescWords), Hint: half(p.hints).At(i),
			Prod: gpu.Cast[abi.Producer](at(dc.own, p.prod)).At(i), Index: gpu.Cast[abi.Index](at(dc.own, p.index)).At(i),
			Mask: depth - 1, Shift: uint64(bits.TrailingZeros64(depth)),
		}
		if n.SmallPut > 8 {
			q.Cells = word(dc.own, p.cells).At(i * n.QueueDepth * abi.CellWords)
		}
		first := proxy.FirstTicket(depth)
		*q.Prod.Raw() = abi.Producer{Ticket: first, Credit: first + depth}
		*q.Index.Raw() = abi.Index{Consumed: first, Completed: first}
		q.Hint.Store(uint32(first))
	}
}

// Device is the device communicator as kernels use it, by value. It must not be used after Close.
func (dc *DevComm) Device() gin.DevComm { return dc.abi }

// Needs is what the device communicator has.
func (dc *DevComm) Needs() Needs { return dc.needs }

// Cause is the first reason that stuck to this device communicator, nil if there is none.
func (dc *DevComm) Cause() error {
	dc.mu.Lock()
	var r *abi.Record
	if !dc.closed {
		r = readRecord(gpu.PtrTo(&dc.abi.Control.Raw().Cause))
	}
	dc.mu.Unlock()
	if r == nil {
		return nil
	}
	cause := causeOf(dc.comm.rank, r)
	c := dc.comm
	c.mu.Lock()
	defer c.mu.Unlock()
	switch cause.Status {
	case gin.PeerLost:
		cause.Detail = c.lost[cause.Peer]
	case gin.Aborted, gin.Revoked:
		cause.Detail = context.Cause(c.ctx) // nil when it is one queue that was aborted
	}
	for _, err := range c.details {
		var re *proxy.RemoteError
		if cause.Detail == nil && errors.As(err, &re) && re.Peer == cause.Peer && re.Context == cause.Context {
			cause.Detail = err
		}
	}
	return cause
}

// waiter is what somebody left who waits for long, nil if nobody did; it makes room for the next.
func (dc *DevComm) waiter() *Cause {
	dc.mu.Lock()
	defer dc.mu.Unlock()
	if dc.closed {
		return nil
	}
	p := gpu.PtrTo(&dc.abi.Control.Raw().Waiter)
	r := readRecord(p)
	if r == nil {
		return nil
	}
	gpu.Store(gpu.PtrTo(&p.Raw().State), 0, gpu.Release, gpu.ScopeSys)
	return causeOf(dc.comm.rank, r)
}

// lose marks a rank as lost.
func (dc *DevComm) lose(rank int) {
	dc.mu.Lock()
	defer dc.mu.Unlock()
	if !dc.closed {
		gpu.Store(dc.abi.Lost.At(rank), 1, gpu.Release, gpu.ScopeSys)
	}
}

// end ends all waits.
func (dc *DevComm) end(s abi.Status) {
	dc.mu.Lock()
	defer dc.mu.Unlock()
	if !dc.closed {
		gpu.Store(gpu.PtrTo(&dc.abi.Control.Raw().Ended), uint32(s), gpu.Release, gpu.ScopeSys)
	}
}

// Close ends the device communicator on this rank, and waits for no other. It waits until the communicator's streams
// are idle and what their kernels posted has left.
func (dc *DevComm) Close() error {
	c := dc.comm
	dc.mu.Lock()
	if dc.closed {
		dc.mu.Unlock()
		return nil
	}
	dc.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), c.opt.Timeout)
	defer cancel()
	c.mu.Lock()
	streams := keys(c.streams)
	c.mu.Unlock()
	for _, s := range streams {
		if err := s.idle(ctx); err != nil {
			return fmt.Errorf("rank %d: close device communicator: %w", c.rank, err)
		}
	}
	err := c.owner.RemoveDevComm(ctx, dc.proxy)
	dc.mu.Lock()
	if !dc.closed {
		dc.closed = true
		err = errors.Join(err, dc.free())
	}
	dc.mu.Unlock()
	// Not before: kernels that still ran were to hear of Abort and of lost ranks, and Comm.Close waits for what is here.
	c.mu.Lock()
	delete(c.devComms, dc)
	c.mu.Unlock()
	return err
}

func (dc *DevComm) free() error {
	c := dc.comm
	w := Window{comm: c, maps: dc.maps, regions: dc.regions, export: dc.export}
	w.unmap()
	var errs []error
	for _, m := range []device.Memory{dc.shared, dc.own} {
		if m != nil {
			errs = append(errs, m.Free())
		}
	}
	return errors.Join(errs...)
}
