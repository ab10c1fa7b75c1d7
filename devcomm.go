// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"sync"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/bootstrap"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/gdaki"
	"github.com/doorbell-net/doorbell/internal/proxy"
	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// DevComm is a device communicator: the queues, signals, counters and barriers that kernels use.
type DevComm struct {
	comm     *Comm
	needs    Needs
	plan     plan
	abi      abi.DevComm
	proxy    *proxy.DevComm
	pairs    *gdaki.DevComm // in its place where kernels drive a NIC
	home     Window         // what the NIC raises of this rank besides its signals
	seg      segments
	netMaps  []device.Memory // by rank, nil where not mapped
	peerMaps []device.Memory
	regions  []netplugin.Region
	export   []byte
	mu       sync.Mutex // closing against marking
	closed   bool
}

// segments is a device communicator's memory of this rank. See plan.
//
// send is what a NIC reads WQEs from, at createPairs' choice in memory of the device or of the host.
// void is what stands for the peer segment of LSA peers that are out: they are still stored to, and nobody looks there.
type segments struct{ net, peer, dev, host, send, void device.Memory }

// signalOffer is what a rank says of its signals.
type signalOffer struct {
	Err     string
	Needs   Needs
	Context int32 // the first of its network's that is free
	offer
	Queues [][]byte // addresses of its queue pairs
}

// Offsets in abi.Control that the host writes.
const (
	controlEnded  = 0
	controlWaiter = 12
)

// deviceCommunicator is what the call of that name is called in messages and between ranks.
const deviceCommunicator = "device communicator"

// DevComm makes a device communicator. Collective: each rank asks for the same. If it fails on one rank it fails on
// all, with that rank's reason.
func (c *Comm) DevComm(ctx context.Context, n Needs) (*DevComm, error) {
	err := c.begin(deviceCommunicator)
	if err != nil {
		return nil, err
	}
	defer c.calls.Done()
	err = n.fill()
	dc := &DevComm{comm: c, needs: n}
	if err = cmp.Or(ofKind(ErrInvalid, cmp.Or(err, n.check())), n.given(c.plugin.Name(), c.powers(), c.size, c.lsaSize, c.opt.TrafficClass), c.multimem(n)); err == nil {
		p := newPlan(n, c.size, c.lsaSize, c.nic != nil)
		dc.plan = p
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
		if dc.pairs != nil {
			err = errors.Join(err, dc.pairs.Close(ctx)) // nothing was posted
		}
		err = errors.Join(err, dc.free())
		return nil, fmt.Errorf("rank %d: %s: %w", c.rank, deviceCommunicator, err)
	}
	c.mu.Lock()
	c.devComms[dc] = struct{}{}
	ended := c.ended
	for r := range c.lost {
		how := uint32(abi.RankLost)
		if c.out[r] {
			how = abi.RankOut
		}
		dc.lose(r, how)
	}
	c.mu.Unlock()
	if ended != abi.OK {
		dc.end(ended)
	}
	return dc, nil
}

func (dc *DevComm) alloc(p plan) (err error) {
	need := p.net + p.peer + p.dev + p.host + p.send
	if have, ok := sys.MemAvailable(); ok && uint64(need) > have {
		return fmt.Errorf("need %d bytes, have %d: %w", need, have, ErrOutOfMemory) // before any of it is taken
	}
	dev, s := dc.comm.dev, &dc.seg
	for _, m := range []struct {
		at    *device.Memory
		take  func(int) (device.Memory, error)
		bytes int
	}{{&s.net, dev.AllocHost, p.net}, {&s.peer, dev.Alloc, p.peer}, {&s.dev, dev.Alloc, p.dev}, {&s.host, dev.AllocHost, p.host}} {
		if *m.at, err = m.take(m.bytes); err != nil {
			return err
		}
	}
	return nil
}

// importPeers maps the LSA peers' segments, and makes what stands for those of ranks that are out.
func (dc *DevComm) importPeers(blobs []bootstrap.Blob, p plan) (err error) {
	c := dc.comm
	if dc.peerMaps, err = c.importPeers(blobs, 1, func(int) int { return p.peer }); err != nil {
		return err
	}
	for i := range c.lsaSize {
		if i != c.lsaRank && dc.peerMaps[c.rank-c.lsaRank+i] == nil && dc.seg.void == nil {
			if dc.seg.void, err = c.dev.Alloc(p.peer); err != nil {
				return err
			}
		}
	}
	return nil
}

// connect exchanges the signals' memory and starts the proxy.
func (dc *DevComm) connect(ctx context.Context, p plan) error {
	c := dc.comm
	export, err := c.export(ctx, dc.seg.net.Bytes(), true)
	if err != nil {
		return c.refuse(ctx, deviceCommunicator, err)
	}
	dc.export = export
	c.mu.Lock()
	first := c.nextCtx
	c.mu.Unlock()
	mine := signalOffer{Needs: dc.needs, Context: first, offer: offer{Bytes: p.net, Size: p.net, Export: export}}
	if c.nic != nil {
		if err := dc.createPairs(ctx, p); err != nil {
			return c.refuse(ctx, deviceCommunicator, err)
		}
		mine.Queues = dc.pairs.Addresses()
	}
	blob, err := handleBlob(mine, dc.seg.net.Handle(), dc.seg.peer.Handle())
	if err != nil {
		return c.refuse(ctx, deviceCommunicator, err)
	}
	offers, addresses, base := make([]offer, c.size), make([][][]byte, c.size), int32(0)
	err = c.exchange(ctx, deviceCommunicator, blob, func(r int, b bootstrap.Blob) error {
		var s signalOffer
		if err := json.Unmarshal(b.Bytes, &s); err != nil {
			return err
		}
		if !reflect.DeepEqual(s.Needs, dc.needs) {
			return ofKind(ErrDisagree, fmt.Errorf("rank %d needs %+v, rank %d %+v: they must agree", c.rank, dc.needs, r, s.Needs))
		}
		if c.nic != nil && len(s.Queues) != p.queues {
			return fmt.Errorf("rank %d offers %d queue pairs, rank %d has %d", r, len(s.Queues), c.rank, p.queues)
		}
		offers[r], addresses[r], base = s.offer, s.Queues, max(base, s.Context)
		return nil
	}, func(blobs []bootstrap.Blob) error {
		if dc.netMaps, dc.regions, err = c.importAll(ctx, blobs, offers, false); err != nil {
			return err
		}
		if err = dc.importPeers(blobs, p); err == nil && c.nic != nil {
			err = dc.connectPairs(ctx, p, addresses)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := dc.layOut(p); err != nil {
		return err
	}
	if c.nic != nil {
		return dc.pairs.Settle(ctx, c.isOut)
	}
	c.mu.Lock()
	c.nextCtx = base + int32(dc.needs.Contexts) // the same on all ranks, also after a call that failed on some of them
	c.mu.Unlock()
	powers := c.plugin.Powers()
	dc.proxy = &proxy.DevComm{
		ABI: dc.abi, Stick: dc.stick, Context: base, Signals: dc.regions, Net: c.endpoint,
		MaxBytes: powers.MaxBytes, Polled: powers.Polled, DeviceMemory: powers.DeviceMemory, Unordered: !powers.Ordered, Untold: !powers.Ordered && !powers.RemoteCompletion, Blind: !c.dev.Powers().HostView,
	}
	return c.owner.AddDevComm(ctx, dc.proxy)
}

// layOut fills in the structure that kernels get, and the tables it points at.
func (dc *DevComm) layOut(p plan) error {
	c, n, powers := dc.comm, p.n, dc.comm.plugin.Powers()
	at := func(m device.Memory, off int) gpu.Ptr[byte] { return m.Ptr().Byte(uint64(off)) }
	word := func(m device.Memory, off int) gpu.Ptr[uint64] { return gpu.Cast[uint64](at(m, off)) }
	half := func(m device.Memory, off int) gpu.Ptr[uint32] { return gpu.Cast[uint32](at(m, off)) }
	s := &dc.seg
	depth := uint64(p.depth)
	a := &dc.abi
	*a = abi.DevComm{
		Version: abi.DevCommVersion, Rank: int32(c.rank), Ranks: int32(c.size), LSARank: int32(c.lsaRank), LSASize: int32(c.lsaSize),
		Contexts: int32(n.Contexts), Signals: int32(n.Signals), Counters: int32(n.Counters), Barriers: int32(n.Barriers),
		Peers: int32(p.peers), SignalStride: uint32(p.stride), CellPayload: uint32(p.n.SmallPut), Looks: 64, Sharing: uint32(n.Sharing),
		LLBlocks: int32(n.LLA2ABlocks), LLSlots: int32(n.LLA2ASlots), Timeout: uint64(c.opt.Timeout),
		Mask: depth - 1, Shift: uint64(bits.TrailingZeros64(depth)),
		Slots: word(s.host, p.slots), Hints: half(s.host, p.hints), Prod: gpu.Cast[abi.Producer](at(s.dev, p.prod)), Index: gpu.Cast[abi.Index](at(s.host, p.index)),
		Status: half(s.dev, p.status), Lost: half(s.dev, p.lost),
		Control: gpu.Cast[abi.Control](at(s.dev, p.ctl)), Notes: gpu.Cast[abi.Notes](at(s.host, p.notes)),
		Net: word(s.net, 0), LSA: word(s.peer, p.lsaWords), Inbox: word(s.peer, p.inbox),
		SigOffset: word(s.dev, p.off), Shadow: word(s.dev, p.shadow),
		Counter: word(s.host, p.ctr), CounterOffset: word(s.dev, p.coff),
		PeerLSA: gpu.Cast[gpu.Ptr[uint64]](at(s.dev, p.peerLSA)), PeerInbox: gpu.Cast[gpu.Ptr[uint64]](at(s.dev, p.peerInbox)),
		Barrier: gpu.Cast[abi.BarrierState](at(s.dev, p.barrier)),
		LL:      word(s.peer, p.ll), PeerLL: gpu.Cast[gpu.Ptr[uint64]](at(s.dev, p.peerLL)), LLState: gpu.Cast[abi.LLState](at(s.dev, p.llState)), Asleep: gpu.PtrTo(c.engine.Asleep()),
	}
	if p.n.SmallPut > 8 {
		a.Cells = word(s.host, p.cells)
	}
	if c.dev.Powers().Lanes == 1 {
		a.Together = int32(c.together)
	}
	if n.Rail {
		a.Railed = 1
	}
	if n.Multimem {
		a.Multimem = 1
	}
	if n.WeakOnly {
		a.Refused = abi.FlagStrong
	}
	if n.Fence {
		a.Remote = 1
	}
	if powers.Polled && c.engine.Mode() == proxy.Assisted && c.dev.Powers().Lanes == 1 {
		a.Looks = 1 // the waiting thread is the one that looks at the network
	}
	if c.rank == 0 {
		a.Inject = map[string]uint32{netplugin.InjectBitFlip: abi.InjectBitFlip, netplugin.InjectLostPut: abi.InjectLostPut,
			netplugin.InjectDoubleSignal: abi.InjectDoubleSignal}[c.opt.Inject]
	}
	// What the host may not reach is built here and written in one go; only its first tables are not zero.
	image := make([]uint64, p.dev/8)
	inImage := func(off int) gpu.Ptr[byte] { return gpu.Cast[byte](gpu.PtrTo(&image[0])).Byte(uint64(off)) }
	peerLSA, peerInbox, peerLL := gpu.Cast[gpu.Ptr[uint64]](inImage(p.peerLSA)), gpu.Cast[gpu.Ptr[uint64]](inImage(p.peerInbox)), gpu.Cast[gpu.Ptr[uint64]](inImage(p.peerLL))
	for i := range c.lsaSize {
		m := dc.peerMaps[c.rank-c.lsaRank+i]
		switch {
		case i == c.lsaRank:
			m = s.peer
		case m == nil:
			m = s.void
		}
		peerLSA.At(i).Store(word(m, p.lsaWords))
		peerInbox.At(i).Store(word(m, p.inbox))
		peerLL.At(i).Store(word(m, p.ll))
	}
	for i := range n.LLA2ABlocks {
		gpu.Cast[abi.LLState](inImage(p.llState)).At(i).Store(abi.LLState{Epoch: abi.LLFirstEpoch})
	}
	if c.nic != nil {
		dc.layOutPairs(p, inImage)
		return s.dev.Write(0, gpu.Slice(inImage(0), p.dev))
	}
	first := proxy.FirstTicket(depth)
	for i := range p.queues {
		gpu.Cast[abi.Producer](inImage(p.prod)).At(i).Store(abi.Producer{Ticket: first, Credit: first + depth})
		a.Index.At(i).Store(abi.Index{Consumed: first, Completed: first})
		a.Hints.At(i).Store(uint32(first))
	}
	return s.dev.Write(0, gpu.Slice(inImage(0), p.dev))
}

// tell writes a word of the device's memory that kernels look at.
func (dc *DevComm) tell(off int, v uint32) {
	m := dc.seg.dev
	if m.Bytes() != nil {
		gpu.Store(gpu.Cast[uint32](m.Ptr().Byte(uint64(off))), v, gpu.Release, gpu.ScopeSys)
		return
	}
	if err := m.Write(off, binary.LittleEndian.AppendUint32(nil, v)); err != nil {
		dc.comm.opt.Log.Error("tell the device", "rank", dc.comm.rank, "error", err)
	}
}

// stick sets the status of a queue.
func (dc *DevComm) stick(queue int, s abi.Status) { dc.tell(dc.plan.status+4*queue, uint32(s)) }

// Device is the device communicator as kernels use it, by value. It must not be used after Close.
func (dc *DevComm) Device() gin.DevComm { return dc.abi }

// Resource is where the ids of a named resource of its Needs begin.
func (dc *DevComm) Resource(name string) (IDs, error) {
	n := dc.needs
	at := IDs{int32(n.Signals), int32(n.Counters), int32(n.Barriers)}
	names := make([]string, 0, len(n.Resources))
	for _, r := range n.Resources {
		if r.Name == name {
			return at, nil
		}
		at = IDs{at.Signal + int32(r.Signals), at.Counter + int32(r.Counters), at.Barrier + int32(r.Barriers)}
		names = append(names, r.Name)
	}
	return IDs{}, fmt.Errorf("rank %d: resource %q: this device communicator has %q", dc.comm.rank, name, names)
}

// Needs is what the device communicator has.
func (dc *DevComm) Needs() Needs { return dc.needs }

// Cause is the first reason that stuck to this device communicator, nil if there is none.
func (dc *DevComm) Cause() error {
	dc.mu.Lock()
	var r *abi.Record
	if !dc.closed {
		r = readRecord(gpu.PtrTo(&dc.abi.Notes.Raw().Cause))
		// What the host saw tells more if it names an operation; else who waited does, unless a kernel had given up by then.
		if h := dc.first().Cause(); h != nil && (r == nil || h.Op != 0 || gin.Status(r.Status) == gin.Aborted) {
			r = h
		}
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
		var about interface{ About() (peer, context int) }
		if cause.Detail != nil || !errors.As(err, &about) {
			continue
		}
		if peer, ctx := about.About(); peer == cause.Peer && ctx == cause.Context {
			cause.Detail = err
		}
	}
	if cause.Detail == nil && r.Syndrome != 0 {
		cause.Detail = errors.New(wqe.Syndrome(r.Syndrome).String())
	}
	return cause
}

// first is what the host saw first.
func (dc *DevComm) first() *proxy.First {
	if dc.pairs != nil {
		return &dc.pairs.First
	}
	return &dc.proxy.First
}

// waiter is what somebody left who waits for long, nil if nobody did; it makes room for the next.
func (dc *DevComm) waiter() *Cause {
	dc.mu.Lock()
	defer dc.mu.Unlock()
	if dc.closed {
		return nil
	}
	p := gpu.PtrTo(&dc.abi.Notes.Raw().Waiter)
	r := readRecord(p)
	if r == nil {
		return nil
	}
	gpu.Store(gpu.PtrTo(&p.Raw().State), 0, gpu.Release, gpu.ScopeSys)
	dc.tell(dc.plan.ctl+controlWaiter, 0)
	return causeOf(dc.comm.rank, r)
}

// lose marks a rank as lost; how is an abi.Rank*.
func (dc *DevComm) lose(rank int, how uint32) {
	dc.mu.Lock()
	defer dc.mu.Unlock()
	if !dc.closed {
		dc.tell(dc.plan.lost+4*rank, how)
	}
}

// end ends all waits.
func (dc *DevComm) end(s abi.Status) {
	dc.mu.Lock()
	defer dc.mu.Unlock()
	if !dc.closed {
		dc.tell(dc.plan.ctl+controlEnded, uint32(s))
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
	return errors.Join(dc.drain(ctx), dc.release())
}

// release frees what has been drained.
func (dc *DevComm) release() (err error) {
	dc.mu.Lock()
	if !dc.closed {
		dc.closed = true
		err = dc.free()
	}
	dc.mu.Unlock()
	// Not before: kernels that still ran were to hear of Abort and of lost ranks, and Comm.Close waits for what is here.
	c := dc.comm
	c.mu.Lock()
	delete(c.devComms, dc)
	c.mu.Unlock()
	return err
}

// drain waits for what was posted, and ends the queues.
func (dc *DevComm) drain(ctx context.Context) error {
	err := dc.comm.loseGone(ctx)
	if dc.pairs != nil {
		return errors.Join(err, dc.pairs.Close(ctx))
	}
	return errors.Join(err, dc.comm.owner.RemoveDevComm(ctx, dc.proxy))
}

func (dc *DevComm) free() error {
	c := dc.comm
	if dc.home.comm != nil {
		dc.home.unmap()
	}
	w := Window{comm: c, maps: append(dc.netMaps, dc.peerMaps...), regions: dc.regions, export: dc.export}
	w.unmap()
	var errs []error
	for _, m := range []device.Memory{dc.seg.net, dc.seg.peer, dc.seg.dev, dc.seg.host, dc.seg.send, dc.seg.void} {
		if m != nil {
			errs = append(errs, m.Free())
		}
	}
	return errors.Join(errs...)
}
