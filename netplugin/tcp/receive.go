// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/doorbell-net/doorbell/netplugin"
)

// read takes what has come, at most a few buffers of it, and says whether there was something.
func (l *link) read() (some bool) {
	for range 8 {
		if l.fd < 0 {
			return some
		}
		if len(l.body) > 0 {
			n, err := recv(l.fd, l.body)
			if !l.came(n, err) {
				return some
			}
			some = true
			if l.body = l.body[n:]; len(l.body) == 0 {
				l.body = nil
				l.effect(&l.bodyHead)
			}
			continue
		}
		n, err := recvSmall(l.fd, l.rx[l.w:])
		if !l.came(n, err) {
			return some
		}
		some = true
		full := l.w+n == len(l.rx)
		l.w += n
		if err := l.frames(); err != nil {
			l.lose(err)
			return some
		}
		if !full && len(l.body) == 0 {
			return some
		}
	}
	return some
}

// came says whether a receive got bytes; it gives up the socket when that has ended.
func (l *link) came(n int, err error) bool {
	switch {
	case err == unix.EAGAIN:
		return false
	case err != nil:
		l.lose(cmp.Or(l.why, fmt.Errorf("read: %w", err)))
		return false
	case n == 0:
		l.lose(cmp.Or(l.why, errors.New("read: the peer's end is closed")))
		return false
	}
	l.idle = 0
	received()
	return true
}

// frames takes whole frames out of the buffer, and starts on the body of one whose rest is received into the window.
func (l *link) frames() error {
	for l.w-l.r >= headerBytes {
		var h header
		if err := h.decode((*[headerBytes]byte)(l.rx[l.r : l.r+headerBytes])); err != nil {
			return err
		}
		n := h.payload()
		have := min(l.w-l.r-headerBytes, n)
		if have < n && n <= copyBelow {
			break // it is received whole
		}
		body := l.rx[l.r+headerBytes : l.r+headerBytes+have]
		l.r += headerBytes + have
		dst, err := l.accept(&h)
		if err != nil {
			return err
		}
		copy(dst, body)
		if have < n {
			l.bodyHead = h
			if len(dst) == 0 {
				l.body = l.e.waste[:n-have] // refused, or here already: its bytes go nowhere
			} else {
				l.body = dst[have:]
			}
			l.r, l.w = 0, 0
			return nil
		}
		l.effect(&h)
	}
	copy(l.rx, l.rx[l.r:l.w])
	l.r, l.w = 0, l.w-l.r
	return nil
}

// accept checks a frame before its body: where that goes, nil if nowhere. An error breaks the link for good.
func (l *link) accept(h *header) (dst []byte, err error) {
	if h.epoch != l.e.cfg.Epoch {
		return nil, fmt.Errorf("%w: of epoch %d, %d is accepted", errWire, h.epoch, l.e.cfg.Epoch)
	}
	if h.kind == kindNo && h.seq == l.rxSeq+1 {
		if err := l.refusedAt(h.off); err != nil { // before its acknowledgement ends the operation as done
			return nil, err
		}
	}
	if err := l.took(h.ack); err != nil {
		return nil, err
	}
	switch {
	case h.seq == 0 || h.seq <= l.rxSeq:
		return nil, nil // no number, or it took effect before the socket broke
	case h.seq != l.rxSeq+1:
		return nil, fmt.Errorf("%w: frame %d after %d", errWire, h.seq, l.rxSeq)
	}
	switch h.kind {
	case kindPut:
		mem := l.e.memory(h.region)
		if l.deadCtx[h.context] || !netplugin.InBounds(h.off, uint64(h.length), uint64(len(mem))) ||
			h.flags&flagSignal != 0 && l.e.word(h) == nil {
			l.bar(h.context)
			return nil, nil // refused when all of it has come
		}
		return mem[h.off : h.off+uint64(h.length)], nil
	case kindReply:
		g, ok := l.gets[h.off]
		if !ok || len(g.data) != int(h.length) {
			return nil, fmt.Errorf("%w: a reply of %d bytes to get %d", errWire, h.length, h.off)
		}
		return g.data, nil
	}
	return nil, nil
}

// effect does what a frame is for, when its body is there.
func (l *link) effect(h *header) {
	l.toldBytes += int(h.length)
	if h.kind == kindBye {
		l.bye = true
		return
	}
	if h.seq == 0 || h.seq <= l.rxSeq {
		return
	}
	l.rxSeq = h.seq
	switch h.kind {
	case kindPut:
		if l.deadCtx[h.context] {
			l.refuse(h)
		} else if h.flags&flagSignal != 0 {
			if w := l.e.word(h); w != nil {
				addWord(w, h.sigAdd)
			}
		}
	case kindGet:
		mem := l.e.memory(h.region)
		if !netplugin.InBounds(h.off, uint64(h.length), uint64(len(mem))) {
			l.refuse(h)
			return
		}
		// A copy: a put behind this get may change the window before the reply is written, or written again.
		l.answer(&header{kind: kindReply, off: h.seq, length: h.length}, append(l.spareBuffer(), mem[h.off:h.off+uint64(h.length)]...))
	case kindReply:
		g := l.gets[h.off]
		delete(l.gets, h.off)
		l.e.ended(g.token, nil)
	}
}

// refusedAt ends the operation whose frame the peer refused.
func (l *link) refusedAt(seq uint64) error {
	if seq <= l.acked || seq > l.sent {
		return fmt.Errorf("%w: frame %d refused, those on their way are %d to %d", errWire, seq, l.acked+1, l.sent)
	}
	it := &l.tx[(seq-1)%txDepth]
	err := fmt.Errorf("tcp: rank %d refused a frame of rank %d: %w", l.peer, l.e.cfg.Rank, netplugin.ErrBounds)
	if it.want {
		it.want = false
		l.e.ended(it.token, err)
	}
	if g, ok := l.gets[seq]; ok {
		delete(l.gets, seq)
		l.e.ended(g.token, err)
	}
	return nil
}

// refuse answers a frame that may not take effect. All of it has come: until then its source is sent from.
func (l *link) refuse(h *header) {
	l.bar(h.context)
	l.answer(&header{kind: kindNo, off: h.seq, context: h.context}, nil)
}

// bar has no later put of a context take effect: a signal would cover what never came.
func (l *link) bar(context uint32) {
	if l.deadCtx == nil {
		l.deadCtx = map[uint32]bool{}
	}
	l.deadCtx[context] = true
}

// withdrawn is for the frame whose body is just being received into a region that is gone: the rest goes nowhere.
func (l *link) withdrawn(id uint32) {
	h := &l.bodyHead
	if len(l.body) == 0 || h.kind != kindPut || h.region != id || h.seq != l.rxSeq+1 || l.deadCtx[h.context] {
		return
	}
	l.bar(h.context)
	l.body = l.e.waste[:len(l.body)]
}

// answer queues a frame of our own, now or when there is room.
func (l *link) answer(h *header, data []byte) {
	if h.kind == kindNo {
		l.noes = append(l.noes, no{l.tail + uint64(len(l.later)), h.off})
	}
	if !l.room() {
		l.later = append(l.later, answer{*h, data})
		return
	}
	l.push(h, data, 0, false)
}

// catchUp queues the answers that waited.
func (l *link) catchUp() {
	for len(l.later) > 0 && l.tail-l.acked < txDepth {
		a := &l.later[0]
		l.push(&a.h, a.data, 0, false)
		l.later = l.later[1:]
	}
}
