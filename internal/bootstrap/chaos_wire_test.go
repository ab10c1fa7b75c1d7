// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// gate holds up whoever passes while it is shut. Shuts nest.
type gate struct {
	mu   sync.Mutex
	shut int
	open chan struct{} // closed when the last shut ends
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut++; g.shut == 1 {
		g.open = make(chan struct{})
	}
}

func (g *gate) reopen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut--; g.shut == 0 {
		close(g.open)
	}
}

// pass returns false when done comes first.
func (g *gate) pass(done <-chan struct{}) bool {
	for {
		g.mu.Lock()
		shut, open := g.shut > 0, g.open
		g.mu.Unlock()
		if !shut {
			return true
		}
		select {
		case <-open:
		case <-done:
			return false
		}
	}
}

// wire is what lies between the TCP sockets of two ranks: each has its own connection, which ends here, and two hops
// carry what comes over the one to the other. A hop can be cut, late and slow; it loses nothing and keeps the order, as
// TCP would over a network that comes back. An end is carried like bytes, so that a cut holds it back too.
type wire struct {
	ends [2]*net.TCPConn // the ranks'
	hops [2]*hop         // from ends[0], from ends[1]
	done <-chan struct{}
	wg   sync.WaitGroup
}

type hop struct {
	w        *wire
	src, dst *net.TCPConn
	cut      gate
	late     time.Duration // at most
	dribble  bool          // byte by byte
	rnd      *rand.Rand    // of the reader
	queue    chan piece    // bounded: a hop that is cut pushes back

	mu   sync.Mutex
	last time.Time     // something was given
	gap  time.Duration // longest between two such times
}

type piece struct {
	b   []byte
	at  time.Time
	end error // the source's; b is empty
}

// newWire lasts until done is closed.
func newWire(t testing.TB, done <-chan struct{}, late time.Duration, dribble bool, rnd *rand.Rand) *wire {
	w := &wire{done: done}
	var inner [2]*net.TCPConn
	for i := range w.ends {
		w.ends[i], inner[i] = tcpPair(t)
	}
	for i := range w.hops {
		h := &hop{w: w, src: inner[i], dst: inner[1-i], late: late, dribble: dribble, rnd: rand.New(rand.NewPCG(rnd.Uint64(), 0)), queue: make(chan piece, 16), last: time.Now()}
		w.hops[i] = h
		w.wg.Go(h.take)
		w.wg.Go(h.give)
	}
	return w
}

// close waits for the hops, once done is closed. The ranks' ends are the ranks' to close.
func (w *wire) close() {
	for _, h := range w.hops {
		h.src.Close()
	}
	w.wg.Wait()
}

// take reads the source until it ends.
func (h *hop) take() {
	defer close(h.queue)
	for {
		b := make([]byte, 4096)
		n, err := h.src.Read(b)
		at := time.Now()
		if h.late > 0 {
			at = at.Add(time.Duration(h.rnd.Int64N(int64(h.late))))
		}
		if n > 0 && !h.push(piece{b: b[:n], at: at}) {
			return
		}
		if err != nil {
			h.push(piece{end: err, at: at})
			return
		}
	}
}

func (h *hop) push(p piece) bool {
	select {
	case h.queue <- p:
		return true
	case <-h.w.done:
		return false
	}
}

// gave notes that something was given, and returns the longest time without, until now.
func (h *hop) gave(some bool) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	gap := max(h.gap, now.Sub(h.last))
	if some {
		h.gap, h.last = gap, now
	}
	return gap
}

// give writes to the destination. Once that is gone, what comes is dropped; the other hop tells the source.
func (h *hop) give() {
	gone := false
	for p := range h.queue {
		t := time.NewTimer(time.Until(p.at))
		select {
		case <-t.C:
		case <-h.w.done:
		}
		t.Stop()
		if !h.cut.pass(h.w.done) {
			return
		}
		switch {
		case gone:
		case errors.Is(p.end, io.EOF):
			h.dst.CloseWrite()
		case errors.Is(p.end, net.ErrClosed): // ours, or the other hop carried a reset
		case p.end != nil:
			h.dst.SetLinger(0) // a reset goes on as one
			h.dst.Close()
		default:
			gone = h.write(p.b) != nil
			h.gave(true)
		}
	}
}

func (h *hop) write(b []byte) error {
	size := len(b)
	if h.dribble {
		size = 1
	}
	for ; len(b) > 0; b = b[size:] {
		if _, err := h.dst.Write(b[:size]); err != nil {
			return err
		}
	}
	return nil
}

// tcpPair is the two ends of a connection over loopback.
func tcpPair(t testing.TB) (dialed, accepted *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	d, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, err := ln.Accept()
	if err != nil {
		d.Close()
		t.Fatal(err)
	}
	return d.(*net.TCPConn), a.(*net.TCPConn)
}

// gatedConn is a rank's end of a wire, which stands still while the rank does.
type gatedConn struct {
	*net.TCPConn
	still *gate
	deaf  *gate // of reads alone
	done  <-chan struct{}
}

func (c gatedConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if !c.still.pass(c.done) || !c.deaf.pass(c.done) {
		return 0, net.ErrClosed
	}
	return n, err
}

func (c gatedConn) Write(b []byte) (int, error) {
	if !c.still.pass(c.done) {
		return 0, net.ErrClosed
	}
	return c.TCPConn.Write(b)
}
