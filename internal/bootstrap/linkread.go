// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/doorbell-net/doorbell/internal/sys"
)

// reader takes frames until the rank says goodbye or its socket ends, and tells the detector which.
func (l *link) reader() {
	defer l.m.wg.Done()
	defer close(l.read)
	l.retrySoon()
	reason, err := l.frames()
	switch {
	case err == nil:
		l.m.d.left(l.rank, reason)
	case hasEnded(err):
		l.end(err)
	default:
		l.m.d.cut(l.rank, err)
		// It may live. What it sends is no longer looked at, but its end is.
		if _, err := io.Copy(io.Discard, l.conn); err == nil || hasEnded(err) {
			l.end(err)
		} else {
			<-l.m.g.done // the detector may still have a last word for it
		}
	}
	// A group that is ending still has its own goodbye to write; it drops the link itself.
	select {
	case <-l.m.g.done:
	default:
		l.drop()
	}
}

// retrySoon has the socket look again soon after a time without an answer: a link that came back is heard before silence is
// taken for more.
func (l *link) retrySoon() {
	if c, ok := l.conn.(*net.TCPConn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { sys.RetrySoon(int(fd)) }) // a wish
		}
	}
}

// unread reports whether bytes wait in the socket: then the rank is not silent, this process has been slow to read.
func (l *link) unread() bool {
	c, ok := l.conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	some := false
	if raw.Control(func(fd uintptr) { some = bytesWait(int(fd)) }) != nil {
		return false
	}
	return some
}

// end tells the detector of a socket that ended without goodbye: the rank takes no more part, from now on. Only a Unix
// socket's end shows that its process is gone. One of TCP is as well the work of a box between, or of who forges a reset,
// and then its two ends think of each other what we think; so it is for the majority to say who goes on.
func (l *link) end(err error) {
	if err == nil || errors.Is(err, io.EOF) {
		err = ErrNoGoodbye
	} else {
		err = fmt.Errorf("%w: %w", ErrNoGoodbye, err)
	}
	if l.unix() {
		l.m.d.ended(l.rank, err)
	} else {
		l.m.d.cut(l.rank, err)
	}
}

// hasEnded reports whether an error of a socket says that nothing more can come from it, as opposed to something that
// cannot be understood.
func hasEnded(err error) bool {
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// frames returns at a goodbye (with its reason) or with the error that ended the socket.
func (l *link) frames() (string, error) {
	r := newRightsReader(l.conn)
	r.heard = &l.heard
	defer r.drop()
	a := assembly{from: l.rank}
	defer a.drop()
	for {
		f, err := readFrame(r)
		if err != nil {
			return "", err
		}
		if f.kind == kindRights {
			b, err := r.take(f.fds)
			if err != nil {
				return "", err
			}
			if err := a.add(f.seq, f.fds, b); err != nil {
				return "", err
			}
			continue
		}
		if err := r.none(); err != nil {
			return "", err
		}
		switch f.kind {
		case kindGoodbye:
			return string(f.payload), nil
		case kindBeat:
			continue
		case kindMember:
			if err := l.m.d.receive(l.rank, f.payload); err != nil {
				return "", err
			}
			continue
		case kindData, kindFail:
		default:
			return "", fmt.Errorf("bad frame: kind %d is not for a control socket", f.kind)
		}
		c, err := a.finish(&f)
		if err != nil {
			return "", err
		}
		if err := l.m.g.deliver(l.rank, c); err != nil {
			return "", err
		}
	}
}

// assembly gathers the descriptors of a contribution until its last frame.
type assembly struct {
	from      int
	seq       uint64
	announced int
	fds       []int
}

func (a *assembly) add(seq uint64, n int, b batch) error {
	if a.announced > 0 && seq != a.seq || a.announced+n > MaxFDs {
		closeAll(b.fds)
		return fmt.Errorf("bad frame: %d descriptors for all-gather %d behind %d for %d, accepted is at most %d", n, seq, a.announced, a.seq, MaxFDs)
	}
	a.seq = seq
	a.announced += n
	a.fds = append(a.fds, b.fds...)
	return nil
}

func (a *assembly) finish(f *frame) (contribution, error) {
	c := contribution{seq: f.seq, name: f.name}
	if a.announced > 0 && a.seq != f.seq || f.kind == kindData && a.announced != f.fds {
		return c, fmt.Errorf("bad frame: contribution to all-gather %d has %d descriptors, %d came for %d", f.seq, f.fds, a.announced, a.seq)
	}
	switch {
	case f.kind == kindFail:
		c.err = &RemoteError{Rank: a.from, Text: string(f.payload)}
		a.drop()
	case len(a.fds) != a.announced:
		c.err = fmt.Errorf("take %d descriptors of rank %d: only %d came: this process is at its limit of open files", a.announced, a.from, len(a.fds))
		a.drop()
	default:
		c.blob = Blob{Bytes: f.payload, FDs: a.fds}
	}
	*a = assembly{from: a.from}
	return c, nil
}

func (a *assembly) drop() {
	closeAll(a.fds)
	a.fds = nil
}
