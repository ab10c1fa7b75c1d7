// SPDX-License-Identifier: Apache-2.0

package staged

import (
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/dma"
)

// recordsAtOnce bounds what a pass takes of one ring.
const recordsAtOnce = 64

// landing is what ends with a move of down.
type landing struct {
	in    *in // whose bytes below end are free
	end   uint64
	out   *out // whose next record is filled
	token uint64
	owed  bool // an operation of that token is to be told
}

// land pushes a move; the queue is not full.
func (e *endpoint) land(m *dma.Move, l landing) (done bool, err error) {
	if done, err = e.down.Push(m); err != nil {
		return false, err
	}
	if done {
		l.finish()
		return true, nil
	}
	e.downs[e.pushed%depth] = l
	e.pushed++
	return false, nil
}

// finish is what a move's end frees. An operation that is owed it is told by whoever calls.
func (l *landing) finish() {
	if l.in != nil {
		l.in.freed = l.end
	}
	if l.out != nil {
		l.out.fill()
	}
}

// landedOne is told by down that its oldest move has ended. Where the device failed nothing is free: peers' deadlines end it.
func (e *endpoint) landedOne(_ uint64, err error) {
	l := &e.downs[e.landed%depth]
	e.landed++
	if err == nil {
		l.finish()
	}
	if l.owed {
		e.end(l.token, err)
	}
}

func (e *endpoint) Poll(done []netplugin.Completion) int {
	e.moved = false
	if e.closed {
		return 0
	}
	for {
		n := e.inner.Poll(e.ends[:])
		for _, c := range e.ends[:n] {
			if c.Err != nil {
				e.lose(int(c.Token), c.Err)
			}
		}
		if n < len(e.ends) {
			break
		}
	}
	if e.conn != nil && e.conn.Moved() {
		e.moved = true
	}
	if e.up.Poll() {
		e.moved = true
	}
	for r := range e.peers {
		if p := &e.peers[r]; p.lost == nil && r != e.cfg.Rank && p.words != 0 {
			if err := e.pass(r, p); err != nil {
				e.lose(r, err)
			}
		}
	}
	if e.down.Poll() {
		e.moved = true
	}
	for r := range e.peers {
		if p := &e.peers[r]; p.lost == nil && r != e.cfg.Rank && p.words != 0 {
			err := e.tell(r)
			if err == nil && e.notice != nil {
				err = e.notice.Ended(r, answers) // behind a look at what came until then
			}
			if err != nil {
				e.lose(r, err)
			}
		}
	}
	n := copy(done, e.done)
	e.done = e.done[:copy(e.done, e.done[n:])]
	return n
}

// pass takes what came from a peer. Credit that was read before the answers counts: a refusal comes before the credit of what
// it refuses.
func (e *endpoint) pass(r int, p *peer) error {
	var heard [kinds]uint64
	for k := range heard {
		heard[k] = e.word(e.creditAt(r, k))
		if o := &p.out[k]; heard[k]-o.heard > o.sent-o.heard {
			return fmt.Errorf("%w: rank %d took %d bytes of %d", errRecord, r, heard[k], o.sent)
		}
	}
	for k := answers; k >= requests; k-- {
		bell, err := e.rung(r, k)
		if err != nil {
			return err
		}
		in := &p.in[k]
		for n := 0; n < recordsAtOnce && bell != in.pos && !e.down.Full(); n++ {
			var h header
			payload, some, err := in.next(bell, &h)
			if err != nil {
				return err
			}
			if !some {
				break
			}
			took, err := e.record(r, k, &h, payload)
			if err != nil {
				return err
			}
			if !took {
				break
			}
			e.moved = true
		}
	}
	for k := range heard {
		o := &p.out[k]
		o.heard = heard[k]
		for ; o.head != o.filled && o.records[o.head%maxRecords].end-1 < o.heard; o.head++ {
			if rec := &o.records[o.head%maxRecords]; rec.owed {
				e.end(rec.token, nil)
				e.moved = true
			}
		}
	}
	return nil
}

// record takes one record of a ring; not if an answer has no room. An error is the peer's, which has broken the rules.
func (e *endpoint) record(r, kind int, h *header, payload []byte) (took bool, err error) {
	p := &e.peers[r]
	in, answer := &p.in[kind], &p.out[answers]
	l := landing{in: in, end: in.pos + h.bytes()}
	var m dma.Move
	switch {
	case kind == requests && (h.kind == kindPut || h.kind == kindGet):
		reply := header{kind: kindReply, length: h.length, token: h.token}
		if !answer.room(reply.bytes()) {
			return false, nil
		}
		var bad error
		if m, bad = e.move(h); bad != nil || p.dead[h.context] {
			if p.dead == nil {
				p.dead = map[uint32]bool{}
			}
			p.dead[h.context] = true
			m, l.out = dma.Move{}, answer
			answer.reserve(&header{kind: kindRefusal, context: h.context, seq: h.seq, token: h.token})
		} else if h.kind == kindGet {
			to := answer.reserve(&reply)
			m.To, m.From, l.out = dma.Side{Host: to, Dev: gpu.PtrOf(to)}, m.To, answer
		} else {
			m.From = dma.Side{Host: payload, Dev: gpu.PtrOf(payload)}
		}
	case kind == answers && h.kind == kindReply:
		g, err := e.asked(r, h.token)
		if err != nil || g.bytes != int(h.length) {
			return false, fmt.Errorf("%w: a reply of %d bytes: %w", errRecord, h.length, err)
		}
		m = dma.Move{To: g.to, From: dma.Side{Host: payload, Dev: gpu.PtrOf(payload)}, Bytes: g.bytes}
		l.token, l.owed = g.token, true
		e.release(uint32(h.token))
	case kind == answers && h.kind == kindRefusal:
		if err := e.refused(r, h); err != nil {
			return false, err
		}
	default:
		return false, fmt.Errorf("%w: kind %d", errRecord, h.kind)
	}
	in.pos = l.end
	done, err := e.land(&m, l)
	if done && l.owed {
		e.end(l.token, nil)
	}
	return true, err
}

// asked is the get of a token, if that peer was asked for it.
func (e *endpoint) asked(r int, token uint64) (*get, error) {
	i := uint32(token)
	if i >= uint32(len(e.gets)) || !e.gets[i].busy || int(e.gets[i].peer) != r || e.gets[i].turn != uint32(token>>32) {
		return nil, fmt.Errorf("%w: rank %d was not asked for %#x", errRecord, r, token)
	}
	return &e.gets[i], nil
}

// refused ends the operation whose request a peer refused. None of its context takes effect there any more.
func (e *endpoint) refused(r int, h *header) error {
	p := &e.peers[r]
	o := &p.out[requests]
	why := fmt.Errorf("staged: rank %d refused a request of rank %d: %w", r, e.cfg.Rank, netplugin.ErrBounds)
	if h.seq <= o.head || h.seq > o.filled {
		return fmt.Errorf("%w: request %d refused, those on their way are %d to %d", errRecord, h.seq, o.head+1, o.filled)
	}
	if rec := &o.records[(h.seq-1)%maxRecords]; rec.owed {
		rec.owed = false
		e.end(rec.token, why)
	} else if g, err := e.asked(r, h.token); err == nil {
		e.end(g.token, why)
		e.release(uint32(h.token))
	}
	return nil
}

// tell gives a peer what is ready for it, and what of its rings is free. No credit overtakes an answer.
func (e *endpoint) tell(r int) error {
	if _, err := e.flush(r, requests); err != nil {
		return err
	}
	all, err := e.flush(r, answers)
	if err != nil || !all {
		return err
	}
	for k := range kinds {
		if err := e.credit(r, k); err != nil {
			return err
		}
	}
	return nil
}
