// SPDX-License-Identifier: Apache-2.0

// Package mailbox is a small network plugin, for who writes one: ranks of one process that leave messages for each other.
// The receiver's Poll carries a message out and answers; so an operation is done when its bytes are at the target
// (RemoteCompletion), and a mailbox keeps the order in which it was filled (Ordered). Nothing is copied twice: until it is
// done, an operation's Data belongs to the network.
package mailbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

func init() { netplugin.Register(Plugin{}) }

const (
	maxBytes = 32 << 10
	depth    = 256 // messages in a mailbox; a full one means "again"
)

// Plugin is the mailbox network.
type Plugin struct{}

// Name is "mailbox".
func (Plugin) Name() string { return "mailbox" }

// Powers are those of an ordered network that answers.
func (Plugin) Powers() netplugin.Powers {
	return netplugin.Powers{Ordered: true, RemoteCompletion: true, MaxBytes: maxBytes, Polled: true}
}

// Open makes a rank's endpoint.
func (Plugin) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	if c.Ranks < 1 || c.Rank < 0 || c.Rank >= c.Ranks {
		return nil, fmt.Errorf("open mailbox: rank %d of %d ranks; 0 to ranks-1 is accepted", c.Rank, c.Ranks)
	}
	e := &endpoint{cfg: c, lost: make([]bool, c.Ranks), remote: make([]remote, 1), dead: map[lane]bool{}}
	houses.Lock()
	defer houses.Unlock()
	houses.next++
	e.house = houses.next
	houses.all[e.house] = e
	return e, nil
}

// houses are the endpoints of this process by their address.
var houses = struct {
	sync.Mutex
	next uint64
	all  map[uint64]*endpoint
}{all: map[uint64]*endpoint{}}

// message is an operation on its way.
type message struct {
	op     netplugin.Op
	from   *endpoint
	region uint32
	signal uint32
}

type lane struct{ from, context int32 }

// remote is a region of a peer.
type remote struct {
	peer int32
	id   uint32
	size uint64
	used bool
}

type endpoint struct {
	cfg    netplugin.Config
	house  uint64
	peers  []*endpoint
	lost   []bool
	remote []remote // by Region; 0 is none
	moved  bool
	ended  []netplugin.Completion
	dead   map[lane]bool // of whose operations one was refused here: a later one must have no effect

	in struct {
		sync.Mutex
		closed bool
		box    []message
		memory [][]byte // exports, by number; nil once withdrawn
	}
	out struct {
		sync.Mutex
		answers []netplugin.Completion
	}
}

// Address is where peers find this endpoint.
func (e *endpoint) Address() []byte { return binary.LittleEndian.AppendUint64(nil, e.house) }

// Connect finds the peers' endpoints.
func (e *endpoint) Connect(_ context.Context, addrs [][]byte) error {
	houses.Lock()
	defer houses.Unlock()
	for r, a := range addrs {
		var p *endpoint
		if len(a) == 8 {
			p = houses.all[binary.LittleEndian.Uint64(a)]
		}
		if p == nil || p.cfg.Epoch != e.cfg.Epoch {
			return fmt.Errorf("connect mailbox on rank %d: no rank %d of epoch %d at %x in this process", e.cfg.Rank, r, e.cfg.Epoch, a)
		}
		e.peers = append(e.peers, p)
	}
	return nil
}

// Moved says whether the last Poll carried something out.
func (e *endpoint) Moved() bool { return e.moved }

// Lose takes back what a peer has not carried out.
func (e *endpoint) Lose(peer int) {
	e.lost[peer] = true
	p := e.peers[peer]
	p.in.Lock()
	defer p.in.Unlock()
	kept := p.in.box[:0]
	for _, m := range p.in.box {
		if m.from != e {
			kept = append(kept, m)
		} else {
			e.ended = append(e.ended, netplugin.Completion{Token: m.op.Token, Err: e.gone(m.op.Peer)})
		}
	}
	p.in.box = kept
}

func (e *endpoint) gone(peer int32) error {
	return fmt.Errorf("mailbox on rank %d: rank %d: %w", e.cfg.Rank, peer, netplugin.ErrPeerLost)
}

func (e *endpoint) Export(mem []byte, _ bool) ([]byte, error) {
	e.in.Lock()
	defer e.in.Unlock()
	e.in.memory = append(e.in.memory, mem)
	return binary.LittleEndian.AppendUint32(nil, uint32(len(e.in.memory)-1)), nil
}

func (e *endpoint) Withdraw(export []byte) {
	e.in.Lock()
	defer e.in.Unlock()
	e.in.memory[binary.LittleEndian.Uint32(export)] = nil
}

func (e *endpoint) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	if len(k.Bytes) != 4 {
		return 0, fmt.Errorf("import region of rank %d on rank %d: a key of %d bytes, 4 are accepted", peer, e.cfg.Rank, len(k.Bytes))
	}
	e.remote = append(e.remote, remote{int32(peer), binary.LittleEndian.Uint32(k.Bytes), uint64(k.Size), true})
	return netplugin.Region(len(e.remote) - 1), nil
}

func (e *endpoint) Forget(r netplugin.Region) {
	if r > 0 && int(r) < len(e.remote) {
		e.remote[r] = remote{}
	}
}

func (e *endpoint) Post(ops []netplugin.Op) int {
	for i := range ops {
		op := &ops[i]
		m := message{op: *op, from: e}
		if err := e.check(op, &m); err != nil {
			op.State, op.Err = netplugin.Failed, err
			return i + 1
		}
		switch took, closed := e.peers[op.Peer].take(&m); {
		case closed:
			op.State, op.Err = netplugin.Failed, e.gone(op.Peer)
			return i + 1
		case !took:
			return i
		}
		op.State = netplugin.Posted
	}
	return len(ops)
}

// take puts a message into this rank's box, if there is room.
func (e *endpoint) take(m *message) (took, closed bool) {
	e.in.Lock()
	defer e.in.Unlock()
	if e.in.closed || len(e.in.box) >= depth {
		return false, e.in.closed
	}
	e.in.box = append(e.in.box, *m)
	return true, false
}

// check refuses at the source what cannot be, and finds the numbers of its regions.
func (e *endpoint) check(op *netplugin.Op, m *message) error {
	if e.in.closed || int(op.Peer) >= len(e.peers) || e.lost[op.Peer] {
		return e.gone(op.Peer)
	}
	if op.Raise {
		r, err := e.reach(op, op.SigDst, op.SigOff, 8)
		if err != nil {
			return err
		}
		if m.signal = r.id; op.SigOff&7 != 0 {
			return fmt.Errorf("mailbox on rank %d: signal at offset %d, a multiple of 8 is accepted", e.cfg.Rank, op.SigOff)
		}
	}
	switch op.Kind {
	case netplugin.Signal:
		m.op.Data = nil
		return nil
	case netplugin.Put, netplugin.Get:
		if len(op.Data) > maxBytes {
			return fmt.Errorf("mailbox on rank %d: %d bytes, at most %d are accepted", e.cfg.Rank, len(op.Data), maxBytes)
		}
		r, err := e.reach(op, op.Dst, op.DstOff, uint64(len(op.Data)))
		m.region = r.id
		return err
	}
	return fmt.Errorf("mailbox on rank %d: operation of kind %d: put, signal and get are accepted", e.cfg.Rank, op.Kind)
}

func (e *endpoint) reach(op *netplugin.Op, at netplugin.Region, off, n uint64) (remote, error) {
	var r remote
	if at > 0 && int(at) < len(e.remote) {
		r = e.remote[at]
	}
	if !r.used || r.peer != op.Peer || !netplugin.InBounds(off, n, r.size) {
		return r, fmt.Errorf("mailbox on rank %d: %d bytes at offset %d of region %d of rank %d, which has %d: %w",
			e.cfg.Rank, n, off, at, op.Peer, r.size, netplugin.ErrBounds)
	}
	return r, nil
}

func (e *endpoint) Poll(done []netplugin.Completion) int {
	e.in.Lock()
	e.moved = len(e.in.box) > 0
	for i := range e.in.box {
		m := &e.in.box[i]
		err := e.carryOut(m)
		m.from.out.Lock()
		m.from.out.answers = append(m.from.out.answers, netplugin.Completion{Token: m.op.Token, Err: err})
		m.from.out.Unlock()
	}
	clear(e.in.box)
	e.in.box = e.in.box[:0]
	e.in.Unlock()

	e.out.Lock()
	e.ended = append(e.ended, e.out.answers...)
	e.out.answers = e.out.answers[:0]
	e.out.Unlock()
	n := copy(done, e.ended)
	e.ended = e.ended[:copy(e.ended, e.ended[n:])]
	return n
}

var errFormer = errors.New("a former operation of its context was refused")

// carryOut does an operation on this rank's memory.
func (e *endpoint) carryOut(m *message) error {
	op, l := &m.op, lane{int32(m.from.cfg.Rank), m.op.Context}
	if e.dead[l] {
		return errFormer
	}
	mem := e.in.memory[m.region]
	if op.Kind != netplugin.Signal && !netplugin.InBounds(op.DstOff, uint64(len(op.Data)), uint64(len(mem))) || op.Raise && e.in.memory[m.signal] == nil {
		e.dead[l] = true
		return fmt.Errorf("mailbox: rank %d has withdrawn a region: %w", e.cfg.Rank, netplugin.ErrBounds)
	}
	switch op.Kind {
	case netplugin.Put:
		copy(mem[op.DstOff:], op.Data)
	case netplugin.Get:
		copy(op.Data, mem[op.DstOff:])
	}
	if op.Raise {
		gpu.AtomicAdd(gpu.Cast[uint64](gpu.PtrOf(e.in.memory[m.signal])).At(int(op.SigOff/8)), op.SigAdd, gpu.Release, gpu.ScopeSys)
	}
	return nil
}

func (e *endpoint) Close() error {
	houses.Lock()
	delete(houses.all, e.house)
	houses.Unlock()
	e.in.Lock()
	defer e.in.Unlock()
	e.in.closed = true
	for _, m := range e.in.box {
		m.from.out.Lock()
		m.from.out.answers = append(m.from.out.answers, netplugin.Completion{Token: m.op.Token, Err: m.from.gone(m.op.Peer)})
		m.from.out.Unlock()
	}
	e.in.box = nil
	return nil
}
