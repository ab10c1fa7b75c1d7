// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// mesh is the transport of a Join group: one stream socket per other rank, each with a goroutine that reads and one that
// writes. A writer of its own keeps a rank that does not read from holding up the others.
type mesh struct {
	g    *group
	d    *detector
	stop func()         // ends whatever still attaches links
	wg   sync.WaitGroup // readers, writers and the detector's

	mu    sync.Mutex
	ended bool
	links []*link // by rank; nil: none
}

// link is one socket to one rank.
type link struct {
	m    *mesh
	rank int
	conn net.Conn

	heard atomic.Bool // bytes came since the detector looked

	mu    sync.Mutex
	queue []*parcel
	bytes int
	ended bool
	ready chan struct{} // holds one token: queue changed or ended
	wrote chan struct{} // closed when the writer has ended
	read  chan struct{} // closed when the reader has ended
}

// parcel is an encoded contribution (or goodbye) that several links share. Its bytes are never written again.
type parcel struct {
	seq  uint64
	name string
	wire []byte
	bare []byte // wire for links that pass no descriptors; nil: the same
	set  *fdSet // nil: no descriptors
	last bool
	// control parcels are the detector's. They are small and few, and the queue's bounds are not for them.
	control bool
}

// maxControl bounds the parcels that wait for a peer that reads nothing. It is past help: nothing goes to it any more,
// and its silence decides.
const maxControl = 4096

// attach takes over a socket whose other end is proven to be rank. false: the group has ended, or the rank has a socket.
func (m *mesh) attach(rank int, conn net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || m.links[rank] != nil {
		return false
	}
	l := &link{m: m, rank: rank, conn: conn, ready: make(chan struct{}, 1), wrote: make(chan struct{}), read: make(chan struct{})}
	m.links[rank] = l
	m.g.mu.Lock()
	m.g.peers[rank].linked = true
	_, m.g.peers[rank].unix = conn.(*net.UnixConn)
	m.g.mu.Unlock()
	m.g.poke()
	m.wg.Add(2)
	go l.reader()
	go l.write()
	return true
}

// spawn runs f as a goroutine of the mesh; false if the group has ended.
func (m *mesh) spawn(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return false
	}
	m.wg.Go(f)
	return true
}

func (m *mesh) link(rank int) *link {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.links[rank]
}

func (m *mesh) all() (out []*link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.links {
		if l != nil {
			out = append(out, l)
		}
	}
	return out
}

func (m *mesh) contribute(seq uint64, name string, mine Blob, fail string) error {
	if m.d.quiet.Load() {
		return nil // this rank has stopped; whatever it sends would pass for a sign of life
	}
	p := &parcel{seq: seq, name: name}
	var err error
	if fail == "" && len(mine.FDs) > 0 {
		// Own duplicates: a slow peer's copy may leave after AllGather has returned and the caller has closed its own.
		p.set = &fdSet{}
		if p.set.fds, err = dupAll(mine.FDs); err != nil {
			p.set, fail = nil, err.Error()
		} else {
			p.set.refs.Store(1)
			defer p.set.release()
		}
	}
	f := frame{kind: kindData, seq: seq, name: name, payload: mine.Bytes, fds: len(mine.FDs)}
	if fail != "" {
		f = failFrame(seq, name, fail)
	}
	wire, eerr := appendFrame(make([]byte, 0, headerBytes+len(f.name)+len(f.payload)), &f)
	if eerr != nil {
		return eerr // not reached: the group has checked the bounds
	}
	p.wire = wire
	links := m.all()
	if p.set != nil && slices.ContainsFunc(links, func(l *link) bool { return !l.unix() }) {
		f.fds = 0
		if p.bare, eerr = appendFrame(nil, &f); eerr != nil {
			return eerr
		}
	}
	for _, l := range links {
		l.send(p)
	}
	return err
}

func failFrame(seq uint64, name, text string) frame {
	return frame{kind: kindFail, seq: seq, name: name, payload: []byte(clip(text))}
}

// unix reports whether descriptors can go over the link.
func (l *link) unix() bool {
	_, ok := l.conn.(*net.UnixConn)
	return ok
}

// beat queues a sign of life, unless something waits to be sent anyway.
func (l *link) beat(wire []byte) {
	l.mu.Lock()
	idle := len(l.queue) == 0
	l.mu.Unlock()
	if idle {
		l.send(&parcel{wire: wire, control: true})
	}
}

// mute stops sending; the socket stays, or the peer would take its end for ours.
func (l *link) mute() {
	l.mu.Lock()
	l.clear()
	l.mu.Unlock()
	l.poke()
}

// clear drops what waits. Called with the lock held.
func (l *link) clear() {
	l.ended = true // nothing more can be queued
	for _, p := range l.queue {
		p.set.release()
	}
	l.queue, l.bytes = nil, 0
}

// send queues p. A peer that has let the queue fill up is given up.
func (l *link) send(p *parcel) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	if p.control && len(l.queue) >= maxControl {
		l.clear()
		l.mu.Unlock()
		l.poke()
		return
	}
	if !p.last && !p.control && (len(l.queue) >= maxAheadFrames || l.bytes+len(p.wire) > maxAheadBytes+headerBytes+MaxName) {
		err := fmt.Errorf("reads nothing: %d all-gathers (%d bytes) wait to be sent", len(l.queue), l.bytes)
		l.mu.Unlock()
		l.mute()
		l.m.d.cut(l.rank, err)
		return
	}
	if p.set != nil {
		p.set.refs.Add(1)
	}
	l.queue = append(l.queue, p)
	l.bytes += len(p.wire)
	l.mu.Unlock()
	l.poke()
}

func (l *link) poke() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// drop ends the link without more ado; reader and writer see it. Idempotent.
func (l *link) drop() {
	l.mute()
	l.conn.Close()
}

// write sends parcels until the goodbye is out, the link is dropped or the socket fails. What a failure means is left to
// the reader, which may still find a goodbye in the socket.
func (l *link) write() {
	defer l.m.wg.Done()
	defer close(l.wrote)
	for range l.ready {
		for {
			l.mu.Lock()
			if l.ended {
				l.mu.Unlock()
				return
			}
			if len(l.queue) == 0 {
				l.mu.Unlock()
				break
			}
			p := l.queue[0]
			l.queue[0] = nil
			l.queue = l.queue[1:]
			l.bytes -= len(p.wire)
			l.mu.Unlock()
			err := l.put(p)
			p.set.release()
			if err != nil || p.last {
				l.mu.Lock()
				l.clear()
				l.mu.Unlock()
				return
			}
		}
	}
}

// put writes one parcel: rights frames, each a message of its own, then the data frame.
func (l *link) put(p *parcel) error {
	if p.bare != nil && !l.unix() {
		_, err := l.conn.Write(p.bare)
		return err
	}
	if p.set != nil {
		for fds := p.set.fds; len(fds) > 0; {
			n := min(len(fds), rightsBatch)
			if err := l.putRights(p.seq, fds[:n]); err != nil {
				if err == errEnding {
					return nil
				}
				if netGone(err) {
					return err
				}
				// These descriptors cannot be passed (io_uring, say): the peer hears so instead of waiting.
				l.m.g.log.Warn("bootstrap: pass descriptors", "rank", l.m.g.rank, "to", l.rank, "name", p.name, "err", err)
				f := failFrame(p.seq, p.name, fmt.Sprintf("pass %d descriptors to rank %d: %v", len(p.set.fds), l.rank, err))
				wire, err := appendFrame(nil, &f)
				if err != nil {
					return err
				}
				_, err = l.conn.Write(wire)
				return err
			}
			fds = fds[n:]
		}
	}
	_, err := l.conn.Write(p.wire)
	return err
}

// errEnding gives up on a parcel because the group ends; the goodbye still follows.
var errEnding = errors.New("group is ending")

func netGone(err error) bool {
	for _, e := range []error{syscall.EPIPE, syscall.ECONNRESET, net.ErrClosed, syscall.ENOTCONN} {
		if errors.Is(err, e) {
			return true
		}
	}
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func (l *link) putRights(seq uint64, fds []int) error {
	u, ok := l.conn.(*net.UnixConn)
	if !ok {
		return errors.New("descriptors need a Unix socket")
	}
	wire, err := appendFrame(nil, &frame{kind: kindRights, seq: seq, fds: len(fds)})
	if err != nil {
		return err
	}
	rights := encodeRights(fds)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		n, _, err := u.WriteMsgUnix(wire, rights, nil)
		if err == nil {
			if n < len(wire) {
				_, err = l.conn.Write(wire[n:]) // descriptors leave with the first byte
			}
			return err
		}
		if !errors.Is(err, syscall.ETOOMANYREFS) {
			return err
		}
		// This user has too many descriptors under way in sockets. Readers take them off, but nobody tells us when.
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-l.m.g.done:
			t.Stop()
			return errEnding
		}
	}
}

func (m *mesh) ask(n uint32) []int { return m.d.ask(n) }

func (m *mesh) expel(rank int, cause error) { m.d.expel(rank, cause) }

// end says goodbye on all sockets at once, waits for them no longer than closeBound, and releases them.
func (m *mesh) end(goodbye bool, reason string) {
	m.mu.Lock()
	m.ended = true
	m.mu.Unlock()
	m.stop()
	if goodbye {
		wire, err := appendFrame(nil, &frame{kind: kindGoodbye, payload: []byte(clip(reason))})
		if err == nil {
			by := time.Now().Add(closeBound)
			for _, l := range m.links {
				if l != nil {
					l.conn.SetWriteDeadline(by)
					l.send(&parcel{wire: wire, last: true})
				}
			}
			for _, l := range m.links {
				if l != nil {
					<-l.wrote
				}
			}
			m.linger(by)
		}
	}
	for _, l := range m.links {
		if l != nil {
			l.drop()
		}
	}
	m.wg.Wait()
}

// linger lets TCP bring the goodbyes over: a socket that is closed with bytes unread is reset, and takes with it what
// its peer has not got yet. Peers answer a goodbye by closing.
func (m *mesh) linger(by time.Time) {
	for _, l := range m.links {
		if l == nil {
			continue
		}
		if c, ok := l.conn.(interface{ CloseWrite() error }); ok && !l.unix() {
			l.conn.SetReadDeadline(by)
			c.CloseWrite()
		}
	}
	for _, l := range m.links {
		if l != nil && !l.unix() {
			<-l.read
		}
	}
}
