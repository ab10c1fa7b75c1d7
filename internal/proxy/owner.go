// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/netplugin"
)

// Bounds of a pass.
const (
	passOps   = 64
	passNs    = 50_000
	tableSize = 1024
	batchOps  = 32
	// A ticket whose descriptor does not come for so long has lost its producer. Looks further apart than auditGap count
	// as that far: the whole process may have been stopped.
	stuckNs    = 1_000_000_000
	auditGap   = 20_000_000
	auditEvery = 256 // passes
	// Queues up to here are all looked at in each pass; of more, those announced and a share.
	sweepAll = 16
)

// Owner is the progress of one rank. Its methods are safe for concurrent use.
type Owner struct {
	rank int
	lock uint32 // 1 while somebody holds it
	_    [52]byte

	// All below belongs to the holder of lock.
	comms   []*DevComm
	queues  []*queue
	windows []*Window // by id
	nets    []net
	others  []Machine
	lost    []int // ranks
	tab     table
	cursor  int    // whose turn it is among queues that have work
	sweep   int    // where the sweep goes on
	swept   uint64 // when it last went on
	audited uint64 // when dead producers were last looked for
	ops     [batchOps]netplugin.Op
	descs   [batchOps]abi.Desc
	entries [batchOps]int32
	more    [batchOps]uint64 // bytes of the operation after this piece
	done    [passOps]netplugin.Completion
	flying  int
	polled  bool // a network has to be polled also when nothing was posted
	stats   Stats

	awake  atomic.Pointer[func() bool]
	gone   func(peer int) bool
	onFail func(error)
	failed []error // to report when the lock is free
}

// net is an endpoint that the owner polls.
type net struct {
	netplugin.Endpoint
	conn netplugin.Connector // the same, nil if it needs none
}

// Machine is what a rank's progress drives besides its queues: an emulated NIC. The holder of the owner's lock calls it.
type Machine interface {
	// Poll moves something, and says whether there was anything.
	Poll() bool
	// Quiet says whether Poll has nothing to do.
	Quiet() bool
	// Lose says that a peer is lost.
	Lose(peer int)
}

// Stats counts what an owner did since it was made.
type Stats struct {
	Puts, Signals, Bytes, Passes, Stolen uint64
}

// NewOwner makes the progress of a rank. onFail is told of operations that were refused after they were posted, from
// any goroutine that drives progress; it must not block.
func NewOwner(rank int, onFail func(error)) *Owner {
	return &Owner{rank: rank, tab: newTable(tableSize), onFail: onFail, gone: func(int) bool { return false }}
}

// Gone names what says that a peer is lost or has left: whatever fails on its way to such a peer has lost it, also before Lose is
// called. It must not block. It is named before anything is driven.
func (o *Owner) Gone(gone func(peer int) bool) { o.gone = gone }

// hold takes the lock for a host call that changes the owner's tables. Passes are short, so it looks again until ctx
// ends.
func (o *Owner) hold(ctx context.Context) error {
	for i := 0; !atomic.CompareAndSwapUint32(&o.lock, 0, 1); i++ {
		if i&63 == 63 {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("rank %d: wait for progress to pause: %w", o.rank, context.Cause(ctx))
			}
			sys.Yield()
		}
		runtime.Gosched()
	}
	return nil
}

func (o *Owner) release() { gpu.Store(gpu.PtrTo(&o.lock), 0, gpu.Release, gpu.ScopeSys) }

// With runs f while no pass runs. f must not block.
func (o *Owner) With(ctx context.Context, f func()) error {
	if err := o.hold(ctx); err != nil {
		return err
	}
	defer o.release()
	f()
	return nil
}

// AddDevComm starts to serve a device communicator's queues.
func (o *Owner) AddDevComm(ctx context.Context, dc *DevComm) error {
	return o.With(ctx, func() {
		a := &dc.ABI
		for c := range a.Contexts {
			for i := range a.Peers {
				peer := i
				if a.Railed != 0 {
					peer = i*a.LSASize + a.LSARank
				}
				dc.queues = append(dc.queues, newQueue(dc, int(c*a.Peers+i), c, peer))
			}
		}
		dc.heads = make([]uint64, (len(dc.queues)+1)/2)
		for _, q := range dc.queues {
			q.mirror()
			if slices.Contains(o.lost, int(q.peer)) {
				o.end(q)
			}
		}
		o.comms = append(o.comms, dc)
		o.queues = append(o.queues, dc.queues...)
		if !slices.ContainsFunc(o.nets, func(n net) bool { return n.Endpoint == dc.Net }) {
			c, _ := dc.Net.(netplugin.Connector)
			o.nets = append(o.nets, net{dc.Net, c})
		}
		o.polled = o.polled || dc.Polled
	})
}

// Attach starts to drive a machine, until the owner is closed.
func (o *Owner) Attach(ctx context.Context, m Machine) error {
	return o.With(ctx, func() { o.others = append(o.others, m) })
}

// Report has onFail told of an error when the lock is free again. The holder of the lock calls it.
func (o *Owner) Report(err error) {
	if o.onFail != nil {
		o.failed = append(o.failed, err)
	}
}

// RemoveDevComm stops serving it, after what was posted to it has ended, or when ctx has ended, with an error. Its
// memory may be given back in either case.
func (o *Owner) RemoveDevComm(ctx context.Context, dc *DevComm) error {
	for {
		left := 0
		done := ctx.Err() != nil
		// The lock is held for short times only: it needs no deadline.
		err := o.With(context.WithoutCancel(ctx), func() {
			var w [abi.DescWords]uint64
			for _, q := range dc.queues {
				left += q.flying
				if !q.dead && q.read(q.head, &w) {
					left++
				}
			}
			if done = done || left == 0; !done {
				return
			}
			for _, q := range dc.queues {
				q.drop(&o.tab) // ends that come later touch nothing of it
			}
			o.comms = slices.DeleteFunc(o.comms, func(c *DevComm) bool { return c == dc })
			o.queues = slices.DeleteFunc(o.queues, func(q *queue) bool { return q.dc == dc })
			o.cursor, o.sweep = 0, 0
		})
		switch {
		case err != nil:
			return err
		case done && left > 0:
			return fmt.Errorf("rank %d: remove device communicator: %d operations have not ended: %w", o.rank, left, context.Cause(ctx))
		case done:
			return nil
		}
		o.Pass()
	}
}

// AddWindow makes a window known to descriptors.
func (o *Owner) AddWindow(ctx context.Context, w *Window) error {
	return o.With(ctx, func() {
		for len(o.windows) <= int(w.ID) {
			o.windows = append(o.windows, nil)
		}
		o.windows[w.ID] = w
	})
}

// RemoveWindow forgets it; descriptors that name it are refused. It waits for what is on its way.
func (o *Owner) RemoveWindow(ctx context.Context, id uint32) error {
	for {
		flying := 0
		err := o.With(ctx, func() {
			if flying = o.flying; flying == 0 && int(id) < len(o.windows) {
				o.windows[id] = nil
			}
		})
		if err != nil || flying == 0 {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("rank %d: remove window %d: %d operations have not ended: %w", o.rank, id, flying, context.Cause(ctx))
		}
		o.Pass()
	}
}

// Lose ends the queues to a rank that is lost. Of one that it was told of before it does nothing.
func (o *Owner) Lose(ctx context.Context, peer int) error {
	return o.With(ctx, func() {
		if slices.Contains(o.lost, peer) {
			return
		}
		o.lost = append(o.lost, peer)
		for _, n := range o.nets {
			if n.conn != nil {
				n.conn.Lose(peer)
			}
		}
		for _, m := range o.others {
			m.Lose(peer)
		}
		for _, q := range o.queues {
			if int(q.peer) == peer {
				o.end(q)
				q.dc.Note(abi.Record{Status: uint32(abi.PeerLost), Peer: q.peer, Ctx: uint32(q.ctx)})
			}
		}
	})
}

// end ends the queue to a rank that is lost.
func (o *Owner) end(q *queue) {
	q.drop(&o.tab)
	q.setStatus(abi.PeerLost)
}

// Close ends the owner and its endpoint, when no pass runs: whoever still drives it finds nothing.
func (o *Owner) Close(ctx context.Context, end func() error) error {
	var err error
	werr := o.With(ctx, func() {
		o.comms, o.queues, o.windows, o.nets, o.others, o.flying = nil, nil, nil, nil, nil, 0
		err = end()
	})
	return cmp.Or(err, werr)
}

// Stats is a copy of the counters.
func (o *Owner) Stats(ctx context.Context) (s Stats, err error) {
	err = o.With(ctx, func() { s = o.stats })
	return s, err
}

// Pass looks at the queues once and moves what it finds, if nobody else does so just now. It says whether it moved
// something.
func (o *Owner) Pass() bool {
	if atomic.LoadUint32(&o.lock) != 0 || !atomic.CompareAndSwapUint32(&o.lock, 0, 1) {
		return false
	}
	worked := o.pass()
	o.finish()
	return worked
}

// finish gives the lock back, and then reports what failed under it.
func (o *Owner) finish() {
	if o.failed == nil {
		o.release()
		return
	}
	failed := o.failed
	o.failed = nil
	o.release()
	for _, err := range failed {
		o.onFail(err)
	}
}

func (o *Owner) pass() (worked bool) {
	n := o.stats.Passes + 1
	gpu.Store(gpu.PtrTo(&o.stats.Passes), n, gpu.Relaxed, gpu.ScopeSys) // the engine reads it
	if n%auditEvery == 0 {
		o.audit()
	}
	// What waits in the queues goes out first: a look at a polled network is a system call, and finds nothing while the
	// peer has nothing to answer yet.
	worked = o.take(passOps)
	if (o.flying > 0 || o.polled) && o.poll() {
		worked = true
	}
	for _, m := range o.others {
		if m.Poll() {
			worked = true
		}
	}
	return worked
}

// take moves what stands in the queues to the network, at most budget of it.
func (o *Owner) take(budget int) (worked bool) {
	n := len(o.queues)
	if n <= sweepAll {
		for i, at := 0, o.cursor; i < n; i++ {
			q := o.queues[at]
			if at++; at == n {
				at = 0
			}
			if q.dead || !(q.ready() || q.announced()) {
				continue
			}
			// The budget counts bytes too: it bounds the pass without a look at the clock.
			if budget -= o.drain(q, budget); budget <= 0 {
				o.cursor = at // the rest is first next time
				break
			}
		}
		return budget < passOps
	}
	return o.takeMany(n, budget)
}

// poll takes the ends of operations on their way.
func (o *Owner) poll() (some bool) {
	for i := range o.nets {
		net := &o.nets[i]
		n := net.Poll(o.done[:])
		if net.conn != nil && net.conn.Moved() {
			some = true
		}
		for _, c := range o.done[:n] {
			some = true
			if c.Token < uint64(len(o.tab.e)) && o.tab.e[c.Token].q != nil {
				o.pieceEnded(int32(c.Token), c.Err)
			}
		}
	}
	return some
}

// outstanding says whether a queue has a ticket whose descriptor was not taken. Its descriptor is coming, or its
// producer died: both are to be seen soon.
func (o *Owner) outstanding() bool {
	for _, q := range o.queues {
		if q.dead {
			continue
		}
		if q.dc.Blind {
			if q.ready() || q.announced() {
				return true
			}
		} else if gpu.Load(gpu.PtrTo(&q.prod.Ticket), gpu.Acquire, gpu.ScopeSys) != q.head {
			return true
		}
	}
	return false
}

// Audit looks for producers that died between ticket and descriptor. Drivers that pass rarely call it each time.
func (o *Owner) Audit() {
	if atomic.CompareAndSwapUint32(&o.lock, 0, 1) {
		o.audit()
		o.finish()
	}
}

// audit aborts a queue that stands still for a second before a ticket that is out: nobody waits on it for ever.
func (o *Owner) audit() {
	now := sys.Nanotime()
	gap := min(now-o.audited, auditGap)
	o.audited = now
	for _, q := range o.queues {
		if q.dc.Blind {
			continue // threads of a GPU do not die one by one: the device tells of the kernel
		}
		out := gpu.Load(gpu.PtrTo(&q.prod.Ticket), gpu.Acquire, gpu.ScopeSys) != q.head
		var w [abi.DescWords]uint64
		if q.dead || !out || q.head != q.seen || q.room() == 0 || q.read(q.head, &w) {
			q.seen, q.stuck = q.head, 0
			continue
		}
		if q.stuck += gap; q.stuck > stuckNs {
			o.fail(q, abi.Aborted, &abi.Desc{}, errDied)
		}
	}
}

// StayAwake names what says that a kernel may give work at any time without waking anybody, as those of a GPU do.
func (o *Owner) StayAwake(busy func() bool) { o.awake.Store(&busy) }

// Quiet says whether there is nothing to do, and nobody doing it: whoever drives the owner may sleep.
func (o *Owner) Quiet() bool {
	if busy := o.awake.Load(); busy != nil && (*busy)() {
		return false
	}
	if !atomic.CompareAndSwapUint32(&o.lock, 0, 1) {
		return false
	}
	defer o.release()
	for _, m := range o.others {
		if !m.Quiet() {
			return false
		}
	}
	return o.flying == 0 && !o.polled && !o.outstanding()
}
