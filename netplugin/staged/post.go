// SPDX-License-Identifier: Apache-2.0

package staged

import (
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/dma"
)

func (e *endpoint) Post(ops []netplugin.Op) int {
	defer e.down.Flush()
	defer e.up.Flush()
	for i := range ops {
		took, err := e.post(&ops[i])
		if err != nil {
			ops[i].State, ops[i].Err = netplugin.Failed, fmt.Errorf("staged on rank %d: to rank %d: %w", e.cfg.Rank, ops[i].Peer, err)
			return i + 1
		}
		if !took {
			return i
		}
	}
	return len(ops)
}

// post checks an operation and makes its record. It writes nothing before all of it was checked.
func (e *endpoint) post(op *netplugin.Op) (took bool, err error) {
	h, err := e.request(op)
	if err != nil {
		return true, err
	}
	if int(op.Peer) == e.cfg.Rank {
		return e.self(op, &h)
	}
	p := &e.peers[op.Peer]
	o := &p.out[requests]
	if p.lost != nil {
		return true, p.lost
	}
	if e.up.Full() || !o.room(h.bytes()) || h.kind == kindGet && len(e.freeG) == 0 {
		return false, nil
	}
	m := dma.Move{Token: uint64(op.Peer)}
	mine := dma.Side{Host: op.Data, Dev: op.Src}
	if h.kind == kindGet {
		h.token = e.take(get{to: mine, bytes: int(h.length), peer: op.Peer, token: op.Token})
	}
	begun := o.begun
	payload := o.reserve(&h)
	if r := &o.records[(o.tail-1)%maxRecords]; h.kind == kindPut {
		r.token, r.owed = op.Token, true
		m.To, m.From, m.Bytes = dma.Side{Host: payload, Dev: gpu.PtrOf(payload)}, mine, int(h.length)
	}
	done, err := e.up.Push(&m)
	if err != nil {
		o.begun = begun
		o.tail--
		if h.kind == kindGet {
			e.release(uint32(h.token))
		}
		return true, err
	}
	op.State = netplugin.Posted
	if done {
		e.filled(m.Token, nil)
		if _, err := e.flush(int(op.Peer), requests); err != nil {
			e.lose(int(op.Peer), err)
		}
	}
	return true, nil
}

// request is the header of an operation.
func (e *endpoint) request(op *netplugin.Op) (h header, err error) {
	if op.Peer < 0 || int(op.Peer) >= e.cfg.Ranks {
		return h, fmt.Errorf("no such rank: 0 to %d are accepted", e.cfg.Ranks-1)
	}
	h = header{kind: kindPut, context: uint32(op.Context), off: op.DstOff, length: uint32(op.Len())}
	switch op.Kind {
	case netplugin.Signal:
		h.off, h.length = 0, 0
	case netplugin.Put, netplugin.Get:
		if op.Kind == netplugin.Get {
			h.kind = kindGet
		}
		if op.Len() > MaxBytes {
			return h, fmt.Errorf("%d bytes in one operation, at most %d are accepted", op.Len(), MaxBytes)
		}
		if op.Dst == 0 && op.Len() == 0 {
			h.off = 0
			break
		}
		if h.region, err = e.there("window", op, op.Dst, op.DstOff, uint64(h.length)); err != nil {
			return h, err
		}
	default:
		return h, fmt.Errorf("operation of kind %d: put, signal and get are accepted", op.Kind)
	}
	if op.Raise {
		if op.Kind == netplugin.Get || op.SigOff&7 != 0 {
			return h, fmt.Errorf("signal at offset %d of an operation of kind %d: a multiple of 8, of a put or a signal, is accepted", op.SigOff, op.Kind)
		}
		if h.sigRegion, err = e.there("signal", op, op.SigDst, op.SigOff, 8); err != nil {
			return h, err
		}
		h.raise, h.sigOff, h.sigAdd = true, op.SigOff, op.SigAdd
	}
	return h, nil
}

// there is the id of a peer's region, if n bytes at off are in it.
func (e *endpoint) there(what string, op *netplugin.Op, r netplugin.Region, off, n uint64) (id uint32, err error) {
	m, _ := e.remote.Get(r)
	if m.id == 0 || m.peer != op.Peer {
		return 0, fmt.Errorf("no %s has number %d: %w", what, r, netplugin.ErrBounds)
	}
	if !netplugin.InBounds(off, n, m.size) {
		return 0, fmt.Errorf("%d bytes at offset %d of a %s that has %d: %w", n, off, what, m.size, netplugin.ErrBounds)
	}
	return m.id, nil
}

// self does an operation on this rank's own memory, in the order of what peers do there.
func (e *endpoint) self(op *netplugin.Op, h *header) (took bool, err error) {
	if e.down.Full() {
		return false, nil
	}
	m, err := e.move(h)
	if err != nil {
		return true, err
	}
	m.From = dma.Side{Host: op.Data, Dev: op.Src}
	if h.kind == kindGet {
		m.To, m.From = m.From, m.To
	}
	done, err := e.land(&m, landing{token: op.Token, owed: true})
	if err != nil {
		return true, err
	}
	if op.State = netplugin.Posted; done {
		op.State = netplugin.Done
	}
	return true, nil
}

// move is what a request does here: To is where it says.
func (e *endpoint) move(h *header) (m dma.Move, err error) {
	if h.region != 0 || h.length > 0 {
		l, ok := e.local[h.region]
		if !ok || !netplugin.InBounds(h.off, uint64(h.length), l.size) {
			return m, fmt.Errorf("%d bytes at offset %d of window %d: %w", h.length, h.off, h.region, netplugin.ErrBounds)
		}
		m.To, m.Bytes = l.At(h.off, int(h.length)), int(h.length)
	}
	if h.raise {
		l := e.local[h.sigRegion]
		if !l.signals || !netplugin.InBounds(h.sigOff, 8, l.size) || h.sigOff&7 != 0 {
			return m, fmt.Errorf("signal at offset %d of region %d: %w", h.sigOff, h.sigRegion, netplugin.ErrBounds)
		}
		m.Word, m.Add = gpu.Cast[uint64](l.Dev.Byte(h.sigOff)), h.sigAdd
	}
	return m, nil
}

// filled is told by up that the first payload of a ring to a peer that was not in its mirror is.
func (e *endpoint) filled(peer uint64, err error) {
	if err != nil {
		e.lose(int(peer), err)
		return
	}
	e.peers[peer].out[requests].fill()
}

// take finds room for a get, which there is, and names it.
func (e *endpoint) take(g get) (token uint64) {
	i := e.freeG[len(e.freeG)-1]
	e.freeG = e.freeG[:len(e.freeG)-1]
	g.turn, g.busy = e.gets[i].turn+1, true
	e.gets[i] = g
	return uint64(g.turn)<<32 | uint64(i)
}

func (e *endpoint) release(i uint32) {
	e.gets[i].busy = false
	e.freeG = append(e.freeG, i)
}
