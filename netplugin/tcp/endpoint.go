// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/doorbell-net/doorbell/netplugin"
)

func init() { netplugin.Register(Plugin{}) }

// Plugin is the tcp network.
type Plugin struct{}

// Name is "tcp".
func (Plugin) Name() string { return "tcp" }

// Powers are those of a socket with acknowledgements.
func (Plugin) Powers() netplugin.Powers {
	return netplugin.Powers{Ordered: true, RemoteCompletion: true, MaxBytes: MaxBytes, Network: true, TrafficClass: true, Polled: true}
}

// Open makes a rank's endpoint and starts to listen.
func (Plugin) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	if c.Ranks < 1 || c.Rank < 0 || c.Rank >= c.Ranks {
		return nil, fmt.Errorf("open tcp: rank %d of %d ranks; 0 to ranks-1 is accepted", c.Rank, c.Ranks)
	}
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Lanes < 0 || c.Lanes > maxLanes {
		return nil, fmt.Errorf("open tcp on rank %d: %d lanes, 1 to %d are accepted, or 0 for %d", c.Rank, c.Lanes, maxLanes, defaultLanes)
	}
	if c.Lanes == 0 {
		c.Lanes = defaultLanes
	}
	e := &endpoint{cfg: c, local: map[uint32]region{}, waste: make([]byte, MaxBytes), out: make([]byte, 0, outBytes)}
	conn, err := newConnector(e)
	if err != nil {
		return nil, err
	}
	e.conn = conn
	return e, nil
}

// region is memory of this rank that peers may write.
type region struct {
	mem     []byte
	signals bool
}

// remote is memory of a peer.
type remote struct {
	peer int32
	id   uint32
	size uint64
}

type endpoint struct {
	cfg    netplugin.Config
	conn   *connector
	links  [][]*link // by peer, then by lane; none before Connect has returned
	all    []*link
	local  map[uint32]region // by id; no id is used twice: frames of a withdrawn region may still be on their way
	lastID uint32
	remote netplugin.Imports[remote]
	done   []netplugin.Completion // to be reported
	waste  []byte                 // where refused bytes go
	out    []byte                 // small frames of one write
	closed bool
	moved  bool        // by the last Poll
	repeat func() bool // says that a frame is to be sent twice; nil: none is
}

func (e *endpoint) Export(mem []byte, signals bool) ([]byte, error) {
	e.lastID++
	e.local[e.lastID] = region{mem, signals}
	return binary.LittleEndian.AppendUint32(nil, e.lastID), nil
}

func (e *endpoint) Withdraw(export []byte) {
	if len(export) != 4 {
		return
	}
	id := binary.LittleEndian.Uint32(export)
	delete(e.local, id)
	for _, l := range e.all {
		l.withdrawn(id)
	}
}

func (e *endpoint) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	if len(k.Bytes) != 4 || peer < 0 || peer >= e.cfg.Ranks || k.Size < 0 {
		return 0, fmt.Errorf("import region of rank %d on rank %d: a key of %d bytes, 4 are accepted; %d bytes of memory", peer, e.cfg.Rank, len(k.Bytes), k.Size)
	}
	return e.remote.Add(remote{int32(peer), binary.LittleEndian.Uint32(k.Bytes), uint64(k.Size)}), nil
}

func (e *endpoint) Forget(r netplugin.Region) { e.remote.Remove(r) }

// memory is a local region by its id, nil if there is none.
func (e *endpoint) memory(id uint32) []byte {
	return e.local[id].mem
}

// word is the signal's word that a frame names, nil if there is none.
func (e *endpoint) word(h *header) *uint64 {
	r := e.local[h.sigRegion]
	if mem := r.mem; !r.signals || !netplugin.InBounds(h.sigOff, 8, uint64(len(mem))) || h.sigOff&7 != 0 {
		return nil
	}
	return wordAt(r.mem, h.sigOff)
}

func (e *endpoint) ended(token uint64, err error) {
	e.done = append(e.done, netplugin.Completion{Token: token, Err: err})
}

// check is the region of an operation, if it lies in bounds.
func (e *endpoint) check(what string, op *netplugin.Op, r netplugin.Region, off, n uint64) (remote, error) {
	m, _ := e.remote.Get(r)
	if m.id == 0 || m.peer != op.Peer {
		return remote{}, fmt.Errorf("tcp on rank %d: no %s of rank %d with number %d: %w", e.cfg.Rank, what, op.Peer, r, netplugin.ErrBounds)
	}
	if !netplugin.InBounds(off, n, m.size) {
		return m, fmt.Errorf("tcp on rank %d: %d bytes at offset %d of a %s of rank %d that has %d: %w", e.cfg.Rank, n, off, what, op.Peer, m.size, netplugin.ErrBounds)
	}
	return m, nil
}

func (e *endpoint) Post(ops []netplugin.Op) int {
	for i := range ops {
		took, err := e.post(&ops[i])
		if err != nil {
			ops[i].State, ops[i].Err = netplugin.Failed, err
			return i + 1
		}
		if !took {
			return i
		}
	}
	return len(ops)
}

func (e *endpoint) post(op *netplugin.Op) (took bool, err error) {
	if e.closed {
		return true, fmt.Errorf("tcp on rank %d: endpoint is closed", e.cfg.Rank)
	}
	h := header{off: op.DstOff, length: uint32(len(op.Data)), context: uint32(op.Context)}
	if len(op.Data) > MaxBytes {
		return true, fmt.Errorf("tcp on rank %d: %d bytes in one operation, at most %d are accepted", e.cfg.Rank, len(op.Data), MaxBytes)
	}
	switch op.Kind {
	case netplugin.Put, netplugin.Signal:
		h.kind = kindPut
	case netplugin.Get:
		h.kind = kindGet
	default:
		return true, fmt.Errorf("tcp on rank %d: operation of kind %d", e.cfg.Rank, op.Kind)
	}
	if op.Kind == netplugin.Signal || op.Dst == 0 && len(op.Data) == 0 {
		h.off, h.length = 0, 0
	} else {
		m, err := e.check("window", op, op.Dst, op.DstOff, uint64(len(op.Data)))
		if err != nil {
			return true, err
		}
		h.region = m.id
	}
	if op.Raise {
		m, err := e.check("signal", op, op.SigDst, op.SigOff, 8)
		if err != nil {
			return true, err
		}
		if op.SigOff&7 != 0 {
			return true, fmt.Errorf("tcp on rank %d: signal at offset %d, a multiple of 8 is accepted", e.cfg.Rank, op.SigOff)
		}
		h.flags, h.sigRegion, h.sigOff, h.sigAdd = flagSignal, m.id, op.SigOff, op.SigAdd
	}
	if int(op.Peer) == e.cfg.Rank {
		return true, e.self(op, &h)
	}
	l := e.link(int(op.Peer), op.Context)
	switch {
	case l == nil:
		return true, fmt.Errorf("tcp on rank %d: no socket to rank %d", e.cfg.Rank, op.Peer)
	case l.dead != nil:
		return true, l.dead
	case !l.room():
		l.write()
		return false, nil
	}
	op.State = netplugin.Posted
	if op.Kind == netplugin.Get {
		seq := l.push(&h, nil, op.Token, false)
		if l.gets == nil {
			l.gets = map[uint64]getState{}
		}
		l.gets[seq] = getState{op.Data, op.Token}
	} else {
		l.push(&h, op.Data, op.Token, true)
	}
	l.write()
	return true, nil
}

// self does an operation on this rank's own memory.
func (e *endpoint) self(op *netplugin.Op, h *header) error {
	mem := e.memory(h.region)
	var w *uint64
	if op.Raise {
		if w = e.word(h); w == nil {
			return fmt.Errorf("tcp on rank %d: own signal is gone: %w", e.cfg.Rank, netplugin.ErrBounds)
		}
	}
	if h.length > 0 {
		if !netplugin.InBounds(h.off, uint64(h.length), uint64(len(mem))) {
			return fmt.Errorf("tcp on rank %d: own window is gone: %w", e.cfg.Rank, netplugin.ErrBounds)
		}
		if op.Kind == netplugin.Get {
			copy(op.Data, mem[h.off:])
		} else {
			copy(mem[h.off:], op.Data)
		}
	}
	if w != nil {
		addWord(w, op.SigAdd)
	}
	op.State = netplugin.Done
	return nil
}

// link is the lane of a context to a peer: always the same one.
func (e *endpoint) link(peer int, ctx int32) *link {
	if peer < 0 || peer >= len(e.links) || len(e.links[peer]) == 0 {
		return nil
	}
	return e.links[peer][int(ctx)%len(e.links[peer])]
}

func (e *endpoint) Poll(done []netplugin.Completion) int {
	e.moved = false
	for _, l := range e.all {
		if l.fresh.Load() != nil {
			l.adopt()
		}
		if l.fd < 0 {
			continue
		}
		some := l.read()
		l.mayGreet()
		if some {
			e.moved = true
		} else {
			l.idle++
		}
		if len(l.later) > 0 {
			l.catchUp()
		}
		if l.next < l.tail || len(l.between) > 0 {
			l.write()
		}
		l.acknowledge()
	}
	if len(e.done) == 0 {
		return 0
	}
	n := copy(done, e.done)
	e.done = e.done[:copy(e.done, e.done[n:])]
	return n
}

// Moved says whether the last Poll received something.
func (e *endpoint) Moved() bool { return e.moved }

// Ended is why a lane is no more.
func (e *endpoint) Ended(peer int, ctx int32) error {
	if l := e.link(peer, ctx); l != nil {
		return l.dead
	}
	return nil
}

// Address is where peers find this endpoint.
func (e *endpoint) Address() []byte { return e.conn.address() }

// Connect meets all peers.
func (e *endpoint) Connect(ctx context.Context, addrs [][]byte) error {
	return e.conn.connect(ctx, addrs)
}

// Lose ends what is on its way to a peer that is known to be lost.
func (e *endpoint) Lose(peer int) {
	if peer < 0 || peer >= len(e.links) {
		return
	}
	for _, l := range e.links[peer] {
		l.leave() // it may be there still, and about to close too
		l.kill(fmt.Errorf("tcp on rank %d: rank %d: %w", e.cfg.Rank, peer, netplugin.ErrPeerLost))
	}
}

func (e *endpoint) Close() error {
	if e.closed {
		return nil
	}
	e.closed = true
	for _, l := range e.all {
		l.leave()
	}
	return e.conn.close()
}

// leave closes the socket, and tells the peer that this end does, so that it does not try to connect again.
func (l *link) leave() {
	l.adopt() // one that nobody has polled since it was made is to say it too
	if l.fd < 0 {
		return
	}
	var b [headerBytes]byte
	h := header{kind: kindBye, ack: l.tellable(l.next), epoch: l.e.cfg.Epoch}
	h.encode(&b)
	if l.nextOff == 0 && len(l.between) == 0 {
		_, _ = unix.Write(l.fd, b[:]) // a peer that does not get it finds out by itself
	}
	unix.Close(l.fd)
	l.fd = -1
}
