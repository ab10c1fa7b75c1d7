// SPDX-License-Identifier: Apache-2.0

package staged

import (
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

const (
	ringBytes  = 1 << 20
	maxRecords = 4096 // of a ring on their way, a power of two
)

// MaxBytes is the largest operation: a ring has room for several on their way.
const MaxBytes = ringBytes / 8

// The rings of a pair of ranks, in each direction.
const (
	requests = iota
	answers
	kinds
)

// out is a ring that this rank fills, at a peer: its mirror here. Positions are bytes ever, and wrap where the ring does.
type out struct {
	mirror  []byte
	begun   uint64 // reserved
	ready   uint64 // below it all is in the mirror
	sent    uint64 // given to the network
	heard   uint64 // taken by the peer, as it has said
	records [maxRecords]outRecord
	head    uint64 // the oldest that the peer has not taken
	filled  uint64 // the first that is not ready
	tail    uint64
}

// outRecord is a record on its way.
type outRecord struct {
	end   uint64 // behind it
	token uint64
	owed  bool // an operation is to be told of its end
}

// room says whether a record of n bytes can be reserved.
func (o *out) room(n uint64) bool {
	return o.tail-o.head < maxRecords && o.begun+o.pad(n)+n-o.heard <= ringBytes
}

// pad is what is left of the ring where a record of n bytes does not fit.
func (o *out) pad(n uint64) uint64 {
	if left := ringBytes - o.begun%ringBytes; n > left {
		return left
	}
	return 0
}

// reserve writes the header of a record, for which there is room, and returns where its payload goes.
func (o *out) reserve(h *header) (payload []byte) {
	n := h.bytes()
	if pad := o.pad(n); pad > 0 {
		(&header{kind: kindPad, length: uint32(pad - recordBytes)}).encode(o.mirror[o.begun%ringBytes:])
		o.begun += pad
	}
	at := o.begun % ringBytes
	o.tail++
	if h.kind != kindRefusal {
		h.seq = o.tail
	}
	h.encode(o.mirror[at:])
	o.begun += n
	o.records[(o.tail-1)%maxRecords] = outRecord{end: o.begun}
	return o.mirror[at+recordBytes : at+n]
}

// fill notes that the payload of the first record that was not ready is there.
func (o *out) fill() {
	o.ready = o.records[o.filled%maxRecords].end
	o.filled++
}

// flush gives the network what is ready, with the bell behind it, and says whether it took all. ring and bell are the peer's.
func (e *endpoint) flush(peer, kind int) (all bool, err error) {
	p := &e.peers[peer]
	o := &p.out[kind]
	for o.sent != o.ready {
		at := o.sent % ringBytes
		n := min(o.ready-o.sent, ringBytes-at, uint64(e.most))
		e.op[0] = netplugin.Op{
			Kind: netplugin.Put, Strong: true, Raise: true, Context: int32(kind), Peer: int32(peer), Token: uint64(peer),
			Dst: p.rings, DstOff: e.ringAt(e.cfg.Rank, kind) + at, Data: o.mirror[at : at+n],
			SigDst: p.words, SigOff: e.bellAt(e.cfg.Rank, kind), SigAdd: n,
		}
		if took, err := e.send(); !took || err != nil {
			return false, err
		}
		o.sent += n
	}
	return true, nil
}

// credit tells a peer how much was taken of a ring that it fills.
func (e *endpoint) credit(peer, kind int) error {
	p := &e.peers[peer]
	in := &p.in[kind]
	if in.told == in.freed {
		return nil
	}
	e.op[0] = netplugin.Op{
		Kind: netplugin.Signal, Strong: true, Raise: true, Context: answers, Peer: int32(peer), Token: uint64(peer),
		SigDst: p.words, SigOff: e.creditAt(e.cfg.Rank, kind), SigAdd: in.freed - in.told,
	}
	took, err := e.send()
	if took && err == nil {
		in.told = in.freed
	}
	return err
}

// send posts e.op to the network.
func (e *endpoint) send() (took bool, err error) {
	if e.inner.Post(e.op[:]) == 0 {
		return false, nil
	}
	if e.op[0].State == netplugin.Failed {
		return true, e.op[0].Err
	}
	return true, nil
}

// in is a ring that a peer fills here.
type in struct {
	ring  []byte
	pos   uint64 // records below it were looked at
	freed uint64 // and done, below it
	told  uint64 // and the peer knows
}

// next is the record at the ring's position, if the bell has rung for it. What a peer wrote is read once, into h.
func (r *in) next(bell uint64, h *header) (payload []byte, some bool, err error) {
	for bell != r.pos {
		at := r.pos % ringBytes
		if err := h.decode(r.ring[at : at+recordBytes]); err != nil {
			return nil, false, err
		}
		n := h.bytes()
		if n > ringBytes-at {
			return nil, false, fmt.Errorf("%w: of %d bytes at %d of a ring of %d", errRecord, n, at, ringBytes)
		}
		if n > bell-r.pos {
			return nil, false, nil // the rest of it is on its way
		}
		if h.kind != kindPad {
			payload = r.ring[at+recordBytes : at+n]
			if h.kind != kindGet {
				payload = payload[:h.length]
			}
			return payload, true, nil
		}
		r.pos += n
	}
	return nil, false, nil
}

// rung is the bell of a ring that a peer fills, if it can be right.
func (e *endpoint) rung(peer, kind int) (uint64, error) {
	bell := e.word(e.bellAt(peer, kind))
	if r := &e.peers[peer].in[kind]; bell-r.freed > ringBytes || bell%recordBytes != 0 {
		return 0, fmt.Errorf("%w: the bell says %d bytes, %d were taken, of a ring of %d", errRecord, bell, r.freed, ringBytes)
	}
	return bell, nil
}

func (e *endpoint) word(at uint64) uint64 {
	return gpu.Load(gpu.Cast[uint64](gpu.PtrOf(e.words).Byte(at)), gpu.Acquire, gpu.ScopeSys)
}

// Where the rings and words that belong to a rank lie at another one.
func (e *endpoint) ringAt(rank, kind int) uint64   { return uint64(rank*kinds+kind) * ringBytes }
func (e *endpoint) bellAt(rank, kind int) uint64   { return uint64(rank*kinds+kind) * 16 }
func (e *endpoint) creditAt(rank, kind int) uint64 { return e.bellAt(rank, kind) + 8 }
