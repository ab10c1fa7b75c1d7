// SPDX-License-Identifier: Apache-2.0

package dma

import (
	"fmt"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

func init() { netplugin.Register(Plugin{}) }

// MaxBytes is the largest piece: a copy of it between two GPUs takes several times as long as to queue it.
const MaxBytes = 4 << 20

// Plugin is the dma network.
type Plugin struct{}

// Name is "dma".
func (Plugin) Name() string { return "dma" }

// Powers are those of one queue for all that a rank sends.
func (Plugin) Powers() netplugin.Powers {
	return netplugin.Powers{Ordered: true, RemoteCompletion: true, Mapped: true, DeviceMemory: true, MaxBytes: MaxBytes}
}

// Open makes a rank's endpoint and its queue.
func (Plugin) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	if c.Ranks < 1 || c.Rank < 0 || c.Rank >= c.Ranks {
		return nil, fmt.Errorf("open dma: rank %d of %d ranks; 0 to ranks-1 is accepted", c.Rank, c.Ranks)
	}
	if c.Copier == nil {
		return nil, fmt.Errorf("open dma on rank %d: this device has no copy engines to queue copies on; network shm or tcp is for it", c.Rank)
	}
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Second
	}
	e := &endpoint{cfg: c}
	var err error
	if e.queue, err = NewQueue(c.Copier, e.end); err != nil {
		return nil, fmt.Errorf("open dma on rank %d: %w", c.Rank, err)
	}
	return e, nil
}

// region is memory of a peer, mapped here.
type region struct {
	Side
	peer int32
	size uint64
}

type endpoint struct {
	cfg     netplugin.Config
	queue   *Queue
	regions netplugin.Imports[region]
	done    []netplugin.Completion // to be reported
	closed  bool
}

func (e *endpoint) end(token uint64, err error) {
	e.done = append(e.done, netplugin.Completion{Token: token, Err: err})
}

// Export needs no words: peers map the memory.
func (e *endpoint) Export([]byte, bool) ([]byte, error) {
	if e.closed {
		return nil, fmt.Errorf("export on rank %d: the dma endpoint is closed", e.cfg.Rank)
	}
	return nil, nil
}

// Withdraw does nothing: a peer keeps its mapping, and its own Forget ends the use.
func (e *endpoint) Withdraw([]byte) {}

func (e *endpoint) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	refuse := func(why string, args ...any) (netplugin.Region, error) {
		return 0, fmt.Errorf("import region of rank %d on rank %d: %s", peer, e.cfg.Rank, fmt.Sprintf(why, args...))
	}
	switch {
	case e.closed:
		return refuse("the dma endpoint is closed")
	case peer < 0 || peer >= e.cfg.Ranks:
		return refuse("0 to %d are accepted", e.cfg.Ranks-1)
	case k.Size < 0 || k.Map != nil && len(k.Map) != k.Size || k.Map == nil && k.Dev.IsNil():
		return refuse("%d of its %d bytes are mapped, device address %v; dma reaches memory that this process maps", len(k.Map), k.Size, !k.Dev.IsNil())
	}
	r := region{Side: Side{Host: k.Map, Dev: k.Dev, Elsewhere: k.Elsewhere}, peer: int32(peer), size: uint64(k.Size)}
	if r.Dev.IsNil() {
		r.Dev = gpu.PtrOf(k.Map)
	}
	if k.Elsewhere {
		if err := e.queue.Reach(k.Dev, k.Size); err != nil {
			return refuse("%v", err)
		}
	}
	return e.regions.Add(r), nil
}

// Forget waits for moves on their way: the mapping goes away next.
func (e *endpoint) Forget(r netplugin.Region) {
	if _, ok := e.regions.Get(r); !ok {
		return
	}
	if err := e.queue.Drain(e.cfg.Timeout); err != nil && e.cfg.Log != nil {
		e.cfg.Log.Error("forget a region", "rank", e.cfg.Rank, "error", err)
	}
	e.regions.Remove(r)
}

func (e *endpoint) Post(ops []netplugin.Op) int {
	defer e.queue.Flush()
	for i := range ops {
		if e.queue.Full() {
			return i
		}
		op := &ops[i]
		done, err := e.post(op)
		switch {
		case err != nil:
			op.State, op.Err = netplugin.Failed, fmt.Errorf("dma on rank %d: to rank %d: %w", e.cfg.Rank, op.Peer, err)
			return i + 1
		case done:
			op.State = netplugin.Done
		default:
			op.State = netplugin.Posted
		}
	}
	return len(ops)
}

// post checks an operation and pushes its move. It writes nothing before all of it was checked.
func (e *endpoint) post(op *netplugin.Op) (done bool, err error) {
	m := Move{Token: op.Token}
	switch op.Kind {
	case netplugin.Put, netplugin.Get:
		m.Bytes = op.Len()
		if m.Bytes > MaxBytes {
			return false, fmt.Errorf("%d bytes in one operation, at most %d are accepted", m.Bytes, MaxBytes)
		}
		if op.Dst != 0 || m.Bytes > 0 {
			far, err := e.region("window", op.Peer, op.Dst, op.DstOff, uint64(m.Bytes))
			if err != nil {
				return false, err
			}
			m.To, m.From = far.At(op.DstOff, m.Bytes), Side{Host: op.Data, Dev: op.Src}
		}
		if op.Kind == netplugin.Get {
			m.To, m.From = m.From, m.To
		}
	case netplugin.Signal:
	default:
		return false, fmt.Errorf("operation of kind %d: put, signal and get are accepted", op.Kind)
	}
	if op.Raise {
		r, err := e.region("signal", op.Peer, op.SigDst, op.SigOff, 8)
		if err != nil {
			return false, err
		}
		if m.Word, m.Add = gpu.Cast[uint64](r.Dev.Byte(op.SigOff)), op.SigAdd; r.Host == nil || m.Word.Addr()&7 != 0 {
			return false, fmt.Errorf("signal at offset %d, mapped %v: a multiple of 8 in memory of the host is accepted", op.SigOff, r.Host != nil)
		}
	}
	return e.queue.Push(&m)
}

// region is where r of a peer is, if n bytes at off are in it.
func (e *endpoint) region(what string, peer int32, r netplugin.Region, off, n uint64) (region, error) {
	it, ok := e.regions.Get(r)
	if !ok || it.peer != peer || it.Dev.IsNil() {
		return region{}, fmt.Errorf("no %s has number %d: %w", what, r, netplugin.ErrBounds)
	}
	if !netplugin.InBounds(off, n, it.size) {
		return region{}, fmt.Errorf("%d bytes at offset %d of a %s that has %d: %w", n, off, what, it.size, netplugin.ErrBounds)
	}
	return it, nil
}

func (e *endpoint) Poll(done []netplugin.Completion) int {
	e.queue.Poll()
	n := copy(done, e.done)
	e.done = e.done[:copy(e.done, e.done[n:])]
	return n
}

func (e *endpoint) Close() error {
	if e.closed {
		return nil
	}
	e.closed = true
	e.regions = netplugin.Imports[region]{}
	if err := e.queue.Close(); err != nil {
		return fmt.Errorf("close dma on rank %d: %w", e.cfg.Rank, err)
	}
	return nil
}
