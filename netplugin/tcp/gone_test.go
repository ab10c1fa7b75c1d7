// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/doorbell-net/doorbell/netplugin"
)

// goneAtOnce has rank 1 put until something ends, which is to be that rank 0 is lost, and long before anybody gives up
// connecting again.
func goneAtOnce(t *testing.T, p *pair, says string) {
	t.Helper()
	op := []netplugin.Op{p.put(1, 0, make([]byte, 64), 0, 1)}
	if n := p.ep[1].Post(op); n != 1 {
		t.Fatal(n)
	}
	end := op[0].Err
	p.drive(func() bool { return end != nil }, func(_ int, c netplugin.Completion) { end = c.Err })
	if !errors.Is(end, netplugin.ErrPeerLost) || !strings.Contains(end.Error(), says) {
		t.Errorf("ended with %v, want that %q", end, says)
	}
}

// A rank that closes while something comes to it resets the connection, and is heard to say so all the same.
func TestClosesUnread(t *testing.T) {
	p := newPair(t, 4096, time.Hour)
	for _, e := range p.ep {
		e.all[0].adopt()
	}
	op := []netplugin.Op{p.put(1, 0, make([]byte, 64), 0, 1)}
	if n := p.ep[1].Post(op); n != 1 || op[0].State != netplugin.Posted {
		t.Fatal(n, op[0].State, op[0].Err)
	}
	if err := p.ep[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.ep[1].Ended(0, 7); err != nil {
		t.Errorf("it has heard already: %v", err)
	}
	goneAtOnce(t, p, "rank 0 has closed its endpoint")
	if err := p.ep[1].Ended(0, 7); !errors.Is(err, netplugin.ErrPeerLost) {
		t.Errorf("the peer's end: %v", err)
	}
	if n := p.ep[1].all[0].breaks; n != 0 {
		t.Errorf("it tried to connect again %d times", n)
	}
}

// A rank that is lost to another, and did not hear so, is told when it connects again.
func TestLostToPeer(t *testing.T) {
	p := newPair(t, 4096, time.Hour)
	p.drive(func() bool { return p.ep[0].all[0].fd >= 0 && p.ep[1].all[0].fd >= 0 }, nil)
	l := p.ep[0].all[0]
	l.kill(netplugin.ErrPeerLost)
	unix.Close(l.fd)
	l.fd = -1
	goneAtOnce(t, p, "rank 1 is lost to rank 0")
}
