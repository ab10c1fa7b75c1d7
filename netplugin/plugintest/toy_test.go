// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

// toy is a network of a few lines that keeps the rules, or breaks the one that breaks names. With async set it takes few
// operations at a time, answers "again", and carries them out in Poll.
type toy struct {
	breaks    string
	async     bool
	unordered bool // says that it does not keep order
	far       bool // has to be connected, and maps no memory

	exports []*shared // of all ranks of a far one
}

// shared is memory of a rank; nil once it was withdrawn.
type shared struct{ mem []byte }

const toyMost = 5000

func (*toy) Name() string { return "toy" }

func (p *toy) Powers() netplugin.Powers {
	return netplugin.Powers{Ordered: !p.unordered, RemoteCompletion: !p.async || p.unordered, Mapped: !p.far, MaxBytes: toyMost}
}

func (p *toy) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	if p.breaks != "open" && (c.Rank < 0 || c.Rank >= c.Ranks) {
		return nil, fmt.Errorf("rank %d of %d", c.Rank, c.Ranks)
	}
	e := &toyEnd{toy: p, regions: map[netplugin.Region]*shared{}, dead: map[[2]int32]bool{}, epoch: c.Epoch}
	if p.far {
		return &toyFar{e}, nil
	}
	return e, nil
}

type toyEnd struct {
	*toy
	regions map[netplugin.Region]*shared
	next    netplugin.Region
	calls   int
	puts    int
	raises  int
	queue   []netplugin.Op
	ended   []netplugin.Completion
	dead    map[[2]int32]bool
	closed  bool
	garbage []byte

	// Of a far one.
	epoch  uint32
	epochs []uint32 // by rank
	lost   [8]bool  // by rank
}

var errLate = errors.New("a former operation failed")

func (e *toyEnd) Export(mem []byte, _ bool) ([]byte, error) {
	if !e.far {
		return []byte{1}, nil
	}
	e.exports = append(e.exports, &shared{mem})
	return binary.NativeEndian.AppendUint32(nil, uint32(len(e.exports)-1)), nil
}

func (e *toyEnd) Withdraw(key []byte) {
	if e.far && e.breaks != "withdraw" {
		e.exports[binary.NativeEndian.Uint32(key)].mem = nil
	}
}

func (e *toyEnd) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	if e.breaks != "import" && !e.far && (len(k.Map) != k.Size || len(k.Bytes) != 1) || e.far && len(k.Bytes) != 4 {
		return 0, errors.New("not the whole region is mapped")
	}
	e.next++
	switch e.breaks {
	case "region reuse":
		e.next = 1 + e.next%2
	case "few regions":
		e.next = 1 + e.next%250
	}
	e.regions[e.next] = &shared{k.Map}
	if e.far {
		e.regions[e.next] = e.exports[binary.NativeEndian.Uint32(k.Bytes)]
	}
	return e.next, nil
}

func (e *toyEnd) Forget(r netplugin.Region) {
	if e.breaks != "forget" {
		delete(e.regions, r)
	}
}

func (e *toyEnd) Post(ops []netplugin.Op) int {
	if e.breaks == "allocate" {
		e.garbage = make([]byte, 64)
	}
	if e.closed && e.breaks != "close, go on" {
		return 0
	}
	if e.async {
		return e.enqueue(ops)
	}
	if e.breaks == "reorder" {
		for i := range ops {
			if op := &ops[len(ops)-1-i]; e.do(op) == nil {
				op.State = netplugin.Done
			}
		}
		return len(ops)
	}
	for i := range ops {
		op := &ops[i]
		err := e.do(op)
		switch {
		case err == nil && e.breaks == "state":
		case err == nil && e.late(op):
			op.State = netplugin.Posted
			e.queue = append(e.queue, *op)
		case err == nil || e.breaks == "ignore":
			op.State = netplugin.Done
		default:
			op.State, op.Err = netplugin.Failed, err
			if e.breaks == "no error" {
				op.Err = nil
			}
			if e.breaks != "go on" {
				return i + 1
			}
		}
	}
	if e.breaks == "count" {
		return len(ops) + 1
	}
	return len(ops)
}

// enqueue takes up to three operations, at every second call.
func (e *toyEnd) enqueue(ops []netplugin.Op) int {
	if e.calls++; e.calls%2 == 0 || len(e.queue) > 8 {
		return 0
	}
	n := min(len(ops), 3)
	if e.breaks == "takes more" && n < len(ops) {
		defer func() { e.queue = append(e.queue, ops[n]) }()
	}
	if e.breaks == "touches more" && n < len(ops) {
		ops[n].State = netplugin.Posted
	}
	for i := range ops[:n] {
		if e.lost[ops[i].Peer] && e.breaks != "lose, go on" {
			ops[i].State, ops[i].Err = netplugin.Failed, netplugin.ErrPeerLost
			return i + 1
		}
		if e.breaks == "order" {
			if _, err := e.check(&ops[i]); err != nil { // it could not take back what comes later
				ops[i].State, ops[i].Err = netplugin.Failed, err
				return i + 1
			}
		}
		ops[i].State = netplugin.Posted
		e.queue = append(e.queue, ops[i])
	}
	return n
}

func (e *toyEnd) Poll(done []netplugin.Completion) int {
	if !e.async {
		for i := range e.queue {
			op := &e.queue[i]
			e.copy(op)
			e.ended = append(e.ended, netplugin.Completion{Token: op.Token})
		}
		e.queue = e.queue[:0]
	}
	if e.async && len(e.queue) > 0 {
		at := 0
		if e.breaks == "order" {
			at = len(e.queue) / 2
		}
		if e.breaks == "get late" {
			at = max(0, slices.IndexFunc(e.queue, func(op netplugin.Op) bool { return op.Kind != netplugin.Get }))
		}
		op := e.queue[at]
		e.queue = append(e.queue[:at], e.queue[at+1:]...)
		lane := [2]int32{op.Context, op.Peer}
		if e.breaks == "context 8 bits" {
			lane[0] &= 255
		}
		err := errLate
		if !e.dead[lane] || e.breaks == "late go on" {
			err = e.do(&op)
		}
		e.dead[lane] = e.dead[lane] || err != nil
		e.ended = append(e.ended, netplugin.Completion{Token: op.Token, Err: err})
		switch {
		case e.breaks == "lose completion" && op.Token%5 == 0:
			e.ended = e.ended[:len(e.ended)-1]
		case e.breaks == "complete twice" && op.Token%5 == 0:
			e.ended = append(e.ended, e.ended[len(e.ended)-1])
		}
	}
	if e.breaks == "overfill" && len(e.ended) > len(done) {
		return len(e.ended)
	}
	if e.breaks == "drop without room" && len(done) == 0 {
		e.ended = e.ended[:0]
	}
	n := copy(done, e.ended)
	e.ended = append(e.ended[:0], e.ended[n:]...)
	return n
}

// toyFar is an endpoint that has to be connected.
type toyFar struct{ *toyEnd }

func (e *toyFar) Address() []byte { return binary.NativeEndian.AppendUint32(nil, e.epoch) }

func (e *toyFar) Connect(_ context.Context, addrs [][]byte) error {
	for _, a := range addrs {
		e.epochs = append(e.epochs, binary.NativeEndian.Uint32(a))
	}
	return nil
}

func (e *toyFar) Moved() bool { return true }

func (e *toyFar) Lose(peer int) {
	e.lost[peer] = true
	e.queue = slices.DeleteFunc(e.queue, func(op netplugin.Op) bool {
		gone := int(op.Peer) == peer
		if gone && e.breaks != "lose, silent" {
			e.ended = append(e.ended, netplugin.Completion{Token: op.Token, Err: netplugin.ErrPeerLost})
		}
		return gone
	})
}

func (e *toyEnd) Close() error {
	if e.closed && e.breaks == "close" {
		return errors.New("closed already")
	}
	e.closed = true
	return nil
}

// late says that a payload comes after its signal.
func (e *toyEnd) late(op *netplugin.Op) bool {
	return op.Raise && (e.breaks == "payload late" || e.breaks == "weak early" && !op.Strong)
}

// memory is what a region has.
func (e *toyEnd) memory(r netplugin.Region) []byte {
	if s := e.regions[r]; s != nil {
		return s.mem
	}
	return nil
}

// do carries an operation out.
func (e *toyEnd) do(op *netplugin.Op) error {
	if e.breaks == "32 bits" {
		op = &[]netplugin.Op{*op}[0]
		op.DstOff &= 1<<32 - 1
	}
	if e.far && e.epochs[op.Peer] != e.epoch && e.breaks != "epoch" {
		return netplugin.ErrPeerLost
	}
	word, err := e.check(op)
	if err != nil {
		return err
	}
	if !e.late(op) {
		e.copy(op)
	}
	if e.raises++; !op.Raise || e.breaks == "raise, then fail" || e.breaks == "lose signal" && e.raises%7 == 0 {
		return nil
	}
	add := op.SigAdd
	if e.breaks == "double signal" && e.raises%7 == 0 {
		add *= 2
	}
	gpu.AtomicAdd(word, add, gpu.Release, gpu.ScopeSys)
	return nil
}

// check says whether an operation can be carried out, and finds its signal.
func (e *toyEnd) check(op *netplugin.Op) (word gpu.Ptr[uint64], err error) {
	if op.Raise {
		sigs := e.memory(op.SigDst)
		if !netplugin.InBounds(op.SigOff, 8, uint64(len(sigs))) || op.SigOff&7 != 0 && e.breaks != "misaligned" {
			return word, netplugin.ErrBounds
		}
		word = gpu.Cast[uint64](gpu.PtrOf(sigs[op.SigOff&^7:]))
	}
	if e.breaks == "raise, then fail" && op.Raise {
		gpu.AtomicAdd(word, op.SigAdd, gpu.Release, gpu.ScopeSys)
	}
	return word, e.fits(op)
}

func (e *toyEnd) fits(op *netplugin.Op) error {
	mem, n := e.memory(op.Dst), uint64(len(op.Data))
	switch {
	case op.Kind == netplugin.Signal:
		return nil
	case op.Kind != netplugin.Put && op.Kind != netplugin.Get && e.breaks != "kind":
		return errors.New("no such kind")
	case e.breaks == "overflow" && op.DstOff+n <= uint64(len(mem)) || netplugin.InBounds(op.DstOff, n, uint64(len(mem))):
		return nil
	case e.breaks == "write what fits" && op.DstOff < uint64(len(mem)):
		copy(mem[op.DstOff:], op.Data)
	case e.breaks == "write past the end" && op.DstOff < uint64(len(mem)):
		copy(mem[op.DstOff:cap(mem)], op.Data)
	case e.breaks == "bounds error":
		return errors.New("too far")
	}
	return netplugin.ErrBounds
}

func (e *toyEnd) copy(op *netplugin.Op) {
	if op.Kind == netplugin.Signal || len(op.Data) == 0 {
		return
	}
	mem := e.memory(op.Dst)[op.DstOff:]
	if op.Kind != netplugin.Put {
		if e.breaks != "no get" {
			copy(op.Data, mem)
		}
		return
	}
	e.puts++
	if e.breaks == "lose put" && e.puts%7 == 0 {
		return
	}
	if e.breaks == "limit" {
		copy(mem, op.Data[:min(len(op.Data), toyMost)])
		return
	}
	copy(mem, op.Data)
	if e.breaks == "neighbour" && len(op.Data)%8 == 7 && len(mem) > len(op.Data) {
		mem[len(op.Data)] = 0 // whole words are faster
	}
}
