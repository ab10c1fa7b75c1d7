// SPDX-License-Identifier: Apache-2.0

package ce

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

func init() { netplugin.Register(Plugin{}) }

// Plugin is the ce network.
type Plugin struct{}

// Name is "ce".
func (Plugin) Name() string { return "ce" }

// MaxBytes is the largest piece: what it takes to queue it bounds a pass.
const MaxBytes = 4 << 20

// Powers are those of one queue for each target.
func (Plugin) Powers() netplugin.Powers {
	return netplugin.Powers{Ordered: true, Mapped: true, DeviceMemory: true, MaxBytes: MaxBytes}
}

// Open makes a rank's endpoint and its queue.
func (Plugin) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	if c.Ranks < 1 || c.Rank < 0 || c.Rank >= c.Ranks {
		return nil, fmt.Errorf("open ce: rank %d of %d ranks; 0 to ranks-1 is accepted", c.Rank, c.Ranks)
	}
	if c.Copier == nil {
		return nil, fmt.Errorf("open ce on rank %d: this device has no copy engines to queue copies on; network shm or tcp is for it", c.Rank)
	}
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Second
	}
	t, err := newTarget(c.Rank, c.Copier)
	if err != nil {
		return nil, fmt.Errorf("open ce on rank %d: %w", c.Rank, err)
	}
	return &endpoint{cfg: c, own: t, peers: make([]*target, c.Ranks), flying: make([]fifo, c.Ranks), lost: make([]bool, c.Ranks)}, nil
}

// region is memory of a peer.
type region struct {
	peer      int32
	host      []byte // nil where the CPU does not reach it
	dev       gpu.Ptr[byte]
	elsewhere bool // on another device (netplugin.Key)
	size      uint64
	sigs      *signals
}

type endpoint struct {
	cfg     netplugin.Config
	own     *target
	peers   []*target // by rank, from Connect on
	flying  []fifo    // by rank: this endpoint's operations in the target's queue, oldest first
	lost    []bool
	regions netplugin.Imports[region]
	closed  bool
	moved   bool
}

// fifo is operations of one endpoint on their way to one target. A target's bound holds for it too.
type fifo struct {
	ops        [marks]flight
	head, tail int
}

type flight struct{ seq, token uint64 }

// Address names this endpoint to the others of its process.
func (e *endpoint) Address() []byte { return []byte(e.own.id) }

// Connect finds all others, which are of this process and have opened theirs.
func (e *endpoint) Connect(_ context.Context, addrs [][]byte) error {
	if len(addrs) != e.cfg.Ranks {
		return fmt.Errorf("connect ce on rank %d: addresses of %d ranks, %d are accepted", e.cfg.Rank, len(addrs), e.cfg.Ranks)
	}
	targets.Lock()
	defer targets.Unlock()
	for r, a := range addrs {
		if e.peers[r] = targets.m[string(a)]; e.peers[r] == nil {
			return fmt.Errorf("connect ce on rank %d: rank %d is not of this process; network tcp reaches others, from windows in memory of the host", e.cfg.Rank, r)
		}
	}
	return nil
}

// Lose ends the use of a peer. What is queued ends by itself.
func (e *endpoint) Lose(peer int) {
	if peer >= 0 && peer < len(e.lost) {
		e.lost[peer] = true
	}
}

// Moved says whether the last Poll saw an end.
func (e *endpoint) Moved() bool { return e.moved }

func (e *endpoint) Export(mem []byte, signals bool) ([]byte, error) {
	if e.closed {
		return nil, fmt.Errorf("export on rank %d: the ce endpoint is closed", e.cfg.Rank)
	}
	if !signals {
		return nil, nil
	}
	return []byte(e.own.export(mem)), nil
}

func (e *endpoint) Withdraw(export []byte) {
	t := e.own
	t.mu.Lock()
	defer t.mu.Unlock()
	var mem []byte
	if s := t.signals[string(export)]; s != nil {
		mem, s.mem = s.mem, nil // senders that have it are refused
		delete(t.signals, string(export))
	}
	if err := t.drain(e.cfg.Timeout); err != nil {
		t.forget(mem)
		if e.cfg.Log != nil {
			e.cfg.Log.Error("withdraw a region", "rank", e.cfg.Rank, "error", err)
		}
	}
}

func (e *endpoint) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	refuse := func(why string, args ...any) (netplugin.Region, error) {
		return 0, fmt.Errorf("import region of rank %d on rank %d: %s", peer, e.cfg.Rank, fmt.Sprintf(why, args...))
	}
	switch {
	case peer < 0 || peer >= e.cfg.Ranks || e.peers[peer] == nil:
		return refuse("it was not met")
	case e.closed:
		return refuse("the ce endpoint is closed")
	case k.Size < 0 || k.Map != nil && len(k.Map) != k.Size || k.Map == nil && k.Dev.IsNil():
		return refuse("%d of its %d bytes are mapped, device address %v; ce reaches memory of this process", len(k.Map), k.Size, !k.Dev.IsNil())
	}
	r := region{peer: int32(peer), host: k.Map, dev: k.Dev, elsewhere: k.Elsewhere, size: uint64(k.Size)}
	if k.Elsewhere { // from where the peer puts into windows here
		if err := e.own.reach(k.Dev, k.Size); err != nil {
			return refuse("%v", err)
		}
	}
	if r.dev.IsNil() {
		r.dev = gpu.PtrOf(k.Map)
	}
	if len(k.Bytes) > 0 {
		t := e.peers[peer]
		t.mu.Lock()
		r.sigs = t.signals[string(k.Bytes)]
		t.mu.Unlock()
		if r.sigs == nil {
			return refuse("no signals are exported as %q", k.Bytes)
		}
	}
	return e.regions.Add(r), nil
}

func (e *endpoint) Forget(r netplugin.Region) { e.regions.Remove(r) }

// region is where r of a peer is; one that is none has no bytes.
func (e *endpoint) region(r netplugin.Region, peer int32) region {
	it, _ := e.regions.Get(r)
	if it.peer != peer {
		return region{}
	}
	return it
}

// Poll reports what has ended, and has the queues say how far they are.
func (e *endpoint) Poll(done []netplugin.Completion) (n int) {
	e.moved = false
	for p := range e.flying {
		f, t := &e.flying[p], e.peers[p]
		if f.head == f.tail || !t.mu.TryLock() {
			continue
		}
		t.advance()
		err := t.markNow()
		ended := t.done
		t.mu.Unlock()
		for ; f.head != f.tail && n < len(done); f.head++ {
			o := &f.ops[f.head%marks]
			if err == nil && o.seq > ended {
				break
			}
			done[n] = netplugin.Completion{Token: o.token, Err: err}
			n++
		}
	}
	e.moved = n > 0
	return n
}

func (e *endpoint) Close() error {
	if e.closed {
		return nil
	}
	e.closed = true
	e.regions = netplugin.Imports[region]{}
	return e.own.close()
}

var errGone = errors.New("its endpoint is closed")
