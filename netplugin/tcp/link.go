// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/doorbell-net/doorbell/netplugin"
)

const (
	txDepth     = 1024      // frames of a link that are not acknowledged; a power of two
	rxBytes     = 256 << 10 // receive buffer of a link
	copyBelow   = 4 << 10   // larger bodies are received straight into the window
	gatherBelow = 1 << 10   // larger bodies are sent from where they stand
	vecs        = 64        // pieces of one write
	outBytes    = 16 << 10  // small frames of one write
	ackFrames   = 64        // frames after which an acknowledgement is sent by itself
	ackBytes    = 256 << 10 // bytes after which it is
	ackPasses   = 8         // idle passes after which it is
)

// txItem is a frame that waits for its acknowledgement.
type txItem struct {
	head  [headerBytes]byte
	data  []byte
	token uint64
	want  bool // the operation ends with the acknowledgement; else with a reply, or it is none of Post's
}

// attach is a socket that a connecting goroutine hands to the link's driver.
type attach struct {
	fd     int
	seen   uint64 // frames of ours that took effect there
	lost   error  // instead: there will be no other socket
	breaks uint64 // with lost: after which break
}

// link is one lane to a peer: a socket, and what survives it. All but what is said to belong to connecting goroutines
// belongs to whoever drives the endpoint.
type link struct {
	e     *endpoint
	peer  int
	lane  int // from 0
	lanes int // that the peer has

	// Of connecting goroutines, under the connector's lock.
	at    netip.AddrPort // where it was reached last, if this rank dials
	met   bool           // it has had a socket
	small bool           // large packets do not seem to get through; see segments.go

	fresh atomic.Pointer[attach]
	heard atomic.Uint64 // what a greeting says took effect; it may be behind what the peer was told
	gone  atomic.Bool   // dead, for connecting goroutines

	fd     int   // -1 while there is no socket
	why    error // why the socket broke, while the rest of what came by it is read
	dead   error // the peer is lost, or the stream was corrupt
	bye    bool  // the peer has said that it closes
	broken bool  // the connector was told
	breaks uint64

	// Sending: frames [acked, tail) are kept; [next, tail) are to be written, of next's bytes nextOff are. Those below sent have
	// been, by this socket or an earlier one: next goes back with each socket, sent does not.
	tx                      []txItem
	acked, next, sent, tail uint64
	nextOff                 int
	between                 []byte            // what is left to be written before the frames from next on
	control                 [headerBytes]byte // an acknowledgement, for between
	copied                  []byte            // a frame that goes once more, or the rest of one that need not go, for between

	// Receiving.
	rx        []byte
	r, w      int
	rxSeq     uint64 // frames that took effect
	told      uint64 // of those the peer has been told
	toldBytes int    // bytes since
	idle      int    // passes since something came
	body      []byte // rest of the body that is received straight into the window
	bodyHead  header
	deadCtx   map[uint32]bool // contexts of the peer, one of whose frames was refused
	noes      []no            // in order, until they are acknowledged
	later     []answer        // frames that found no room
	iov       [][]byte
	gets      map[uint64]getState
	spare     [][]byte // buffers of replies that are acknowledged
}

// no is a refusal of frame seq that stands, or will when there is room, at place at of those to be sent: the peer is not to
// be told before it that the frame took effect.
type no struct{ at, seq uint64 }

// answer is a frame that waits for room.
type answer struct {
	h    header
	data []byte
}

type getState struct {
	data  []byte
	token uint64
}

func newLink(e *endpoint, peer int) *link {
	return &link{e: e, peer: peer, fd: -1, tx: make([]txItem, txDepth), rx: make([]byte, rxBytes), iov: make([][]byte, 0, vecs)}
}

// room says whether an operation can be queued: there is place, and no answer waits for it.
func (l *link) room() bool { return len(l.later) == 0 && l.tail-l.acked < txDepth }

// push queues a frame; there is room.
func (l *link) push(h *header, data []byte, token uint64, want bool) uint64 {
	l.tail++ // frames are numbered from 1
	h.seq, h.epoch = l.tail, l.e.cfg.Epoch
	it := &l.tx[(l.tail-1)%txDepth]
	h.encode(&it.head)
	it.data, it.token, it.want = data, token, want
	return l.tail
}

// write sends what is queued until the socket takes no more.
func (l *link) write() {
	for l.fd >= 0 && (l.next < l.tail || len(l.between) > 0) {
		sending()
		var n int
		var err error
		if small := l.gather(); len(small) > 0 {
			n, err = sendSmall(l.fd, small)
		} else {
			n, err = writev(l.fd, l.pieces())
		}
		if err != nil {
			if err != unix.EAGAIN {
				l.broke(fmt.Errorf("write: %w", err))
			}
			return
		}
		l.wrote(n)
	}
}

// gather is the small frames that come next, one behind the other, or what is left of one between them; empty when a
// large frame comes next. Copying them is cheaper than having the kernel collect them.
func (l *link) gather() []byte {
	if len(l.between) > 0 {
		return l.between
	}
	out, skip := l.e.out[:0], l.nextOff
	for i := l.next; i < l.tail; i++ {
		it := &l.tx[i%txDepth]
		if len(it.data) > gatherBelow || len(out)+headerBytes+len(it.data) > cap(out) {
			break
		}
		if i > l.next || skip == 0 {
			l.putAck(&it.head, i)
		}
		out = append(append(out, it.head[:]...), it.data...)
	}
	return out[min(skip, len(out)):]
}

// pieces is what comes next as headers and bodies where they stand.
func (l *link) pieces() [][]byte {
	l.iov = l.iov[:0]
	skip := l.nextOff
	for i := l.next; i < l.tail && len(l.iov) < vecs-1; i++ {
		it := &l.tx[i%txDepth]
		if i > l.next || skip == 0 {
			l.putAck(&it.head, i)
		}
		l.iov = add(l.iov, it.head[:], &skip)
		l.iov = add(l.iov, it.data, &skip)
	}
	return l.iov
}

// putAck writes into a frame what took effect here.
func (l *link) putAck(head *[headerBytes]byte, i uint64) {
	binary.LittleEndian.PutUint64(head[16:], l.tellable(i+1))
}

// tellable is what the peer may be told that took effect here, when the frames below place i have reached it: all before the
// first refusal that has not.
func (l *link) tellable(i uint64) uint64 {
	for _, n := range l.noes {
		if n.at >= i {
			return n.seq - 1
		}
	}
	return l.rxSeq
}

// add appends what of b is left after skip bytes.
func add(iov [][]byte, b []byte, skip *int) [][]byte {
	if *skip >= len(b) {
		*skip -= len(b)
		return iov
	}
	iov = append(iov, b[*skip:])
	*skip = 0
	return iov
}

// wrote moves on by n bytes.
func (l *link) wrote(n int) {
	if len(l.between) > 0 {
		l.between = l.between[n:]
		return
	}
	l.nextOff += n
	for l.next < l.tail {
		it := &l.tx[l.next%txDepth]
		size := headerBytes + len(it.data)
		if l.nextOff < size {
			break
		}
		l.nextOff -= size
		l.next++
		l.told, l.toldBytes = binary.LittleEndian.Uint64(it.head[16:]), 0 // more may have come since its first byte was written
		if l.nextOff == 0 && l.e.repeat != nil && l.e.repeat() {
			l.goBetween(it, 0)
		}
	}
	l.sent = max(l.sent, l.next)
}

// goBetween has the bytes of a frame from off on written before those from next on. They are copied: it is acknowledged soon.
func (l *link) goBetween(it *txItem, off int) {
	l.copied = append(append(l.copied[:0], it.head[min(off, headerBytes):]...), it.data[max(0, off-headerBytes):]...)
	l.between = l.copied
}

// acknowledge says by itself what took effect, when no frame has said it for long.
func (l *link) acknowledge() {
	if l.fd < 0 || l.rxSeq == l.told || l.next < l.tail || len(l.between) > 0 {
		return
	}
	ack := l.tellable(l.next)
	if ack <= l.told || ack-l.told < ackFrames && l.toldBytes < ackBytes && l.idle < ackPasses {
		return
	}
	h := header{kind: kindAck, ack: ack, epoch: l.e.cfg.Epoch}
	h.encode(&l.control)
	l.between = l.control[:]
	l.told, l.toldBytes = ack, 0
	l.write()
}

// took ends the operations that the peer says took effect. A peer that has greeted reads the old socket until it takes the new
// one, so it may know more than its greeting said; and what comes by a socket that it has lost since may say less.
func (l *link) took(ack uint64) error {
	if ack > l.sent {
		return fmt.Errorf("%w: frame %d acknowledged, %d were sent", errWire, ack, l.sent)
	}
	if ack > l.next { // these need not go again, but what has begun has to end
		if l.nextOff > 0 {
			l.goBetween(&l.tx[l.next%txDepth], l.nextOff)
		}
		l.next, l.nextOff = ack, 0
	}
	for ; l.acked < ack; l.acked++ {
		it := &l.tx[l.acked%txDepth]
		if it.want {
			l.e.ended(it.token, nil)
		}
		if it.head[1] == kindReply {
			l.spare = append(l.spare, it.data)
		}
		it.data = nil
	}
	for len(l.noes) > 0 && l.noes[0].at < l.acked {
		l.noes = l.noes[1:]
	}
	return nil
}

// spareBuffer is an empty buffer for the answer to a get, of the size that the last ones had.
func (l *link) spareBuffer() []byte {
	n := len(l.spare)
	if n == 0 {
		return nil
	}
	b := l.spare[n-1]
	l.spare = l.spare[:n-1]
	return b[:0]
}

// broke gives up a socket that takes nothing more, behind what had come by it: a peer that closes says so, and then resets the
// connection where it has not read all.
func (l *link) broke(cause error) {
	l.why = cause
	for l.fd >= 0 && l.read() {
	}
	l.why = nil
	if l.fd >= 0 {
		l.lose(cause)
	}
}

// lose gives the socket up. The connector makes another one, or says that the peer is lost.
func (l *link) lose(cause error) {
	if l.fd >= 0 {
		unix.Close(l.fd)
		l.fd = -1
	}
	l.r, l.w, l.body, l.between = 0, 0, nil, nil
	l.nextOff = 0
	if errors.Is(cause, errWire) {
		l.kill(cause)
	} else if l.bye {
		l.kill(fmt.Errorf("rank %d has closed its endpoint: %w", l.peer, netplugin.ErrPeerLost))
	} else if l.dead == nil && !l.broken {
		l.broken = true
		l.breaks++
		l.mayGreet()
		l.e.conn.again(l, cause)
	}
}

// mayGreet notes what the next greeting says. A refusal that is not acknowledged goes again, so the peer must not take its
// frame for one that took effect.
func (l *link) mayGreet() {
	if n := l.tellable(l.acked); l.heard.Load() != n { // a store is a locked instruction
		l.heard.Store(n)
	}
}

// kill ends all that is on its way: the peer is lost.
func (l *link) kill(cause error) {
	if l.dead != nil {
		return
	}
	l.dead = cause
	l.gone.Store(true)
	for ; l.acked < l.tail; l.acked++ {
		if it := &l.tx[l.acked%txDepth]; it.want {
			l.e.ended(it.token, cause)
		}
	}
	for _, g := range l.gets {
		l.e.ended(g.token, cause)
	}
	clear(l.gets)
	l.next = l.tail
}

// adopt takes a socket that was connected, and goes on where the peer says it was.
func (l *link) adopt() {
	a := l.fresh.Swap(nil)
	if a == nil {
		return
	}
	if a.lost != nil {
		if l.fd < 0 && l.breaks == a.breaks {
			l.kill(a.lost)
		}
		return
	}
	if l.dead != nil {
		unix.Close(a.fd)
		return
	}
	if l.fd >= 0 { // the peer noticed first that the old one broke
		unix.Close(l.fd)
	}
	l.fd, l.broken = a.fd, false
	l.r, l.w, l.body, l.between, l.nextOff = 0, 0, nil, nil, 0
	if err := l.took(a.seen); err != nil {
		l.lose(err)
		return
	}
	l.next = l.acked
	l.told = 0 // the last acknowledgement may have been lost with the old socket
	l.write()
}
