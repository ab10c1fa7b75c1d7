// SPDX-License-Identifier: Apache-2.0

package staged

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/dma"
)

func init() { netplugin.RegisterWrapper(Wrapper{}) }

// Wrapper makes a network carry device memory that does not reach it.
type Wrapper struct{}

// Name is "staged".
func (Wrapper) Name() string { return "staged" }

// Wrap returns p with windows in device memory.
func (Wrapper) Wrap(p netplugin.Plugin, _ netplugin.Faults) (netplugin.Plugin, error) {
	if w := p.Powers(); !w.Ordered || w.Mapped {
		return nil, fmt.Errorf("staged+%s: a network is accepted that keeps the order of a context (%v) and maps no memory of peers (%v)", p.Name(), w.Ordered, w.Mapped)
	}
	return plugin{p}, nil
}

type plugin struct{ netplugin.Plugin }

func (p plugin) Name() string { return "staged+" + p.Plugin.Name() }

// Powers are those of rings whose records take effect in order.
func (p plugin) Powers() netplugin.Powers {
	w := p.Plugin.Powers()
	return netplugin.Powers{Ordered: true, RemoteCompletion: true, DeviceMemory: true, MaxBytes: MaxBytes, Network: w.Network, TrafficClass: w.TrafficClass, Polled: true}
}

// endpoint is a rank's end.
type endpoint struct {
	cfg    netplugin.Config
	inner  netplugin.Endpoint
	conn   netplugin.Connector // the same, nil if it meets nobody
	notice netplugin.Noticer   // the same, nil if it notices nobody's end
	most   int                 // bytes of one operation of inner
	up     *dma.Queue          // what this rank asks for, into its mirrors
	down   *dma.Queue          // what peers ask for, and what this rank gets
	free   func() error
	rings  []byte // pinned: in rings of all peers
	words  []byte // and the bells and credits that peers raise
	keys   [2][]byte
	peers  []peer
	local  map[uint32]local // by id; no id is used twice: records of a withdrawn region may still be on their way
	lastID uint32
	remote netplugin.Imports[remote]
	gets   []get // on their way, by token's low half
	freeG  []uint32
	downs  [depth]landing // of down's moves on their way, in order
	landed uint64         // of them the first that has not ended
	pushed uint64
	op     [1]netplugin.Op
	ends   [64]netplugin.Completion
	done   []netplugin.Completion // to be reported
	moved  bool
	closed bool
}

// depth is how many moves of down there are at most; the queue has that bound.
const depth = 1024

// peer is another rank.
type peer struct {
	rings, words netplugin.Region // there
	out          [kinds]out
	in           [kinds]in
	lost         error
	dead         map[uint32]bool // contexts of the peer's of which a request was refused: no later one takes effect
}

// local is memory of this rank.
type local struct {
	dma.Side
	size    uint64
	signals bool
}

// remote is memory of a peer.
type remote struct {
	peer int32
	id   uint32
	size uint64
}

// get is one on its way.
type get struct {
	to    dma.Side
	bytes int
	peer  int32
	turn  uint32 // of this slot: the token's high half
	token uint64
	busy  bool
}

// Open makes a rank's endpoint over one of the network.
func (p plugin) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	if c.Ranks < 1 || c.Rank < 0 || c.Rank >= c.Ranks {
		return nil, fmt.Errorf("open %s: rank %d of %d ranks; 0 to ranks-1 is accepted", p.Name(), c.Rank, c.Ranks)
	}
	if c.Copier == nil {
		return nil, fmt.Errorf("open %s on rank %d: the host reaches this device's memory: network %s is for it", p.Name(), c.Rank, p.Plugin.Name())
	}
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Second
	}
	e := &endpoint{
		cfg: c, most: p.Plugin.Powers().MaxBytes &^ (recordBytes - 1), peers: make([]peer, c.Ranks), local: map[uint32]local{},
		gets: make([]get, depth), free: func() error { return nil },
	}
	for i := range e.gets {
		e.freeG = append(e.freeG, uint32(depth-1-i))
	}
	if err := e.open(p.Plugin); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s on rank %d: %w", p.Name(), c.Rank, err), e.Close())
	}
	return e, nil
}

func (e *endpoint) open(p netplugin.Plugin) (err error) {
	var cp netplugin.Copier
	if e.up, err = dma.NewQueue(e.cfg.Copier, e.filled); err != nil {
		return err
	}
	open := func() (netplugin.Copier, error) {
		cp, err = e.cfg.Copier()
		return cp, err
	}
	if e.down, err = dma.NewQueue(open, e.landedOne); err != nil {
		return err
	}
	ring, words := e.cfg.Ranks*kinds*ringBytes, e.cfg.Ranks*kinds*16
	pinned, free, err := cp.Pinned(2*ring + words)
	if err != nil {
		return err
	}
	e.free, e.rings, e.words = free, pinned[:ring], pinned[2*ring:]
	for r := range e.peers {
		for k := range kinds {
			at := e.ringAt(r, k)
			e.peers[r].in[k].ring = pinned[at : at+ringBytes]
			e.peers[r].out[k].mirror = pinned[uint64(ring)+at:][:ringBytes]
		}
	}
	if e.inner, err = p.Open(e.cfg); err != nil {
		return err
	}
	e.conn, _ = e.inner.(netplugin.Connector)
	e.notice, _ = e.inner.(netplugin.Noticer)
	if e.keys[0], err = e.inner.Export(e.rings, false); err != nil {
		return err
	}
	e.keys[1], err = e.inner.Export(e.words, true)
	return err
}

// Address is the network's, and the keys of rings and words.
func (e *endpoint) Address() []byte {
	parts := [3][]byte{nil, e.keys[0], e.keys[1]}
	if e.conn != nil {
		parts[0] = e.conn.Address()
	}
	return joinParts(parts)
}

func joinParts(parts [3][]byte) (b []byte) {
	for _, p := range parts {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(p))), p...)
	}
	return b
}

// cutParts reads what joinParts wrote.
func cutParts(b []byte) (parts [3][]byte, err error) {
	for i := range parts {
		if len(b) < 4 || uint64(len(b)-4) < uint64(binary.LittleEndian.Uint32(b)) {
			return parts, fmt.Errorf("part %d of an address is cut off", i)
		}
		n := binary.LittleEndian.Uint32(b)
		parts[i], b = b[4:4+n], b[4+n:]
	}
	if len(b) > 0 {
		return parts, fmt.Errorf("%d bytes behind an address", len(b))
	}
	return parts, nil
}

// Connect meets all peers, and learns where their rings are.
func (e *endpoint) Connect(ctx context.Context, addrs [][]byte) error {
	inner, all := make([][]byte, len(addrs)), make([][3][]byte, len(addrs))
	for r, a := range addrs {
		var err error
		if all[r], err = cutParts(a); err != nil {
			return fmt.Errorf("connect staged on rank %d: rank %d: %w", e.cfg.Rank, r, err)
		}
		inner[r] = all[r][0]
	}
	if len(addrs) != e.cfg.Ranks {
		return fmt.Errorf("connect staged on rank %d: addresses of %d ranks, %d are accepted", e.cfg.Rank, len(addrs), e.cfg.Ranks)
	}
	if e.conn != nil {
		if err := e.conn.Connect(ctx, inner); err != nil {
			return err
		}
	}
	for r := range e.peers {
		p := &e.peers[r]
		var err1, err2 error
		p.rings, err1 = e.inner.Import(r, netplugin.Key{Bytes: all[r][1], Size: len(e.rings)})
		p.words, err2 = e.inner.Import(r, netplugin.Key{Bytes: all[r][2], Size: len(e.words)})
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
	}
	return nil
}

// Lose ends what is on its way to a peer, and what it asked for.
func (e *endpoint) Lose(peer int) {
	if peer < 0 || peer >= len(e.peers) {
		return
	}
	if e.conn != nil {
		e.conn.Lose(peer)
	}
	e.lose(peer, fmt.Errorf("staged on rank %d: rank %d: %w", e.cfg.Rank, peer, netplugin.ErrPeerLost))
}

func (e *endpoint) lose(peer int, why error) {
	p := &e.peers[peer]
	if p.lost != nil {
		return
	}
	p.lost = why
	o := &p.out[requests]
	for ; o.head != o.tail; o.head++ {
		if r := &o.records[o.head%maxRecords]; r.owed {
			e.end(r.token, why)
		}
	}
	for i := range e.gets {
		if g := &e.gets[i]; g.busy && int(g.peer) == peer {
			e.end(g.token, why)
			e.release(uint32(i))
		}
	}
}

// Moved says whether the last Poll moved bytes.
func (e *endpoint) Moved() bool { return e.moved }

func (e *endpoint) end(token uint64, err error) {
	e.done = append(e.done, netplugin.Completion{Token: token, Err: err})
}

// Export names memory of the host to peers.
func (e *endpoint) Export(mem []byte, signals bool) ([]byte, error) {
	return e.export(local{dma.Side{Host: mem, Dev: gpu.PtrOf(mem)}, uint64(len(mem)), signals})
}

// ExportDevice names memory that only the device reaches.
func (e *endpoint) ExportDevice(at gpu.Ptr[byte], bytes int) ([]byte, error) {
	return e.export(local{dma.Side{Dev: at}, uint64(bytes), false})
}

func (e *endpoint) export(l local) ([]byte, error) {
	if e.closed {
		return nil, fmt.Errorf("export on rank %d: the staged endpoint is closed", e.cfg.Rank)
	}
	e.lastID++
	e.local[e.lastID] = l
	return binary.LittleEndian.AppendUint32(nil, e.lastID), nil
}

// Withdraw waits for copies to and from the region that are on their way.
func (e *endpoint) Withdraw(export []byte) {
	if len(export) != 4 || e.closed {
		return
	}
	delete(e.local, binary.LittleEndian.Uint32(export))
	if err := e.down.Drain(e.cfg.Timeout); err != nil && e.cfg.Log != nil {
		e.cfg.Log.Error("withdraw a region", "rank", e.cfg.Rank, "error", err)
	}
}

// Import names memory of a peer to operations.
func (e *endpoint) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	if len(k.Bytes) != 4 || peer < 0 || peer >= e.cfg.Ranks || k.Size < 0 || e.closed {
		return 0, fmt.Errorf("import region of rank %d on rank %d: a key of %d bytes, 4 are accepted; %d bytes of memory; closed %v", peer, e.cfg.Rank, len(k.Bytes), k.Size, e.closed)
	}
	return e.remote.Add(remote{int32(peer), binary.LittleEndian.Uint32(k.Bytes), uint64(k.Size)}), nil
}

// Forget ends the use of a peer's region.
func (e *endpoint) Forget(r netplugin.Region) { e.remote.Remove(r) }

// Close ends the network's endpoint first: nothing more arrives.
func (e *endpoint) Close() error {
	if e.closed {
		return nil
	}
	e.closed = true
	var errs []error
	if e.inner != nil {
		errs = append(errs, e.inner.Close())
	}
	for _, q := range []*dma.Queue{e.up, e.down} {
		if q != nil {
			errs = append(errs, q.Close())
		}
	}
	return errors.Join(append(errs, e.free())...)
}
