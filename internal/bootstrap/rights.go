// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"io"
	"net"
	"sync/atomic"
)

// fdSet is a set of duplicated descriptors that several writers share; the last one closes them.
type fdSet struct {
	fds  []int
	refs atomic.Int32
}

// dupAll duplicates fds, all or none.
func dupAll(fds []int) ([]int, error) {
	out := make([]int, 0, len(fds))
	for _, fd := range fds {
		d, err := dupFD(fd)
		if err != nil {
			closeAll(out)
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		closeFD(fd)
	}
}

func (s *fdSet) release() {
	if s != nil && s.refs.Add(-1) == 0 {
		closeAll(s.fds)
	}
}

// batch is what came with one message.
type batch struct {
	fds       []int
	truncated bool // the kernel dropped some: this process is at its limit of open files
}

// rightsReader reads a socket and keeps the descriptors that come with the bytes, in order. It asks only for the bytes
// wanted, so that a descriptor is never ahead of its frame by more than that frame.
type rightsReader struct {
	conn    net.Conn
	unix    *net.UnixConn // nil: a stream that carries bytes only
	oob     []byte
	pending []batch
	heard   *atomic.Bool // set when bytes come; nil: nobody asks
}

func newRightsReader(c net.Conn) *rightsReader {
	r := &rightsReader{conn: c}
	if u, ok := c.(*net.UnixConn); ok {
		r.unix, r.oob = u, make([]byte, controlBytes)
	}
	return r
}

// Read implements io.Reader.
func (r *rightsReader) Read(b []byte) (int, error) {
	n, err := r.read(b)
	if n > 0 && r.heard != nil {
		r.heard.Store(true)
	}
	return n, err
}

func (r *rightsReader) read(b []byte) (int, error) {
	if r.unix == nil {
		return r.conn.Read(b)
	}
	if len(b) == 0 {
		return 0, nil
	}
	n, on, flags, _, err := r.unix.ReadMsgUnix(b, r.oob)
	if on > 0 || flags&controlTruncated != 0 {
		fds, derr := decodeRights(r.oob[:on])
		if len(fds) > 0 || flags&controlTruncated != 0 {
			r.pending = append(r.pending, batch{fds: fds, truncated: flags&controlTruncated != 0})
		}
		if err == nil {
			err = derr
		}
	}
	if len(r.pending) > 1 && err == nil {
		err = fmt.Errorf("bad frame: %s descriptors came with one frame", r.count())
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// take hands out the one batch that must have come with the frame just read.
func (r *rightsReader) take(want int) (batch, error) {
	if len(r.pending) != 1 || !r.pending[0].truncated && len(r.pending[0].fds) != want {
		return batch{}, fmt.Errorf("bad frame: %d descriptors announced, %s came", want, r.count())
	}
	b := r.pending[0]
	r.pending = nil
	return b, nil
}

// none refuses descriptors that came with a frame that has none.
func (r *rightsReader) none() error {
	if len(r.pending) != 0 {
		return fmt.Errorf("bad frame: no descriptors announced, %s came", r.count())
	}
	return nil
}

func (r *rightsReader) count() string {
	n := 0
	for _, b := range r.pending {
		n += len(b.fds)
	}
	return fmt.Sprintf("%d (in %d messages)", n, len(r.pending))
}

// drop closes what nobody took.
func (r *rightsReader) drop() {
	for _, b := range r.pending {
		closeAll(b.fds)
	}
	r.pending = nil
}
