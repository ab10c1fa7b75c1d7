// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/doorbell-net/doorbell/internal/netif"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/plugintest"
)

// many is the tcp network with a number of lanes to each peer, all of them over loopback: its addresses play interfaces.
type many struct {
	Plugin
	lanes int
	most  [2]int // Config.Lanes of two ranks
}

func (m many) Open(cfg netplugin.Config) (netplugin.Endpoint, error) {
	cfg.Lanes = m.most[cfg.Rank&1]
	ep, err := m.Plugin.Open(cfg)
	if err != nil {
		return nil, err
	}
	c := ep.(*endpoint).conn
	c.list = func() (all []netif.Interface, err error) {
		for i := range m.lanes {
			all = append(all, netif.Interface{Name: fmt.Sprint("if", i), Up: true, MTU: 1500, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i)})}})
		}
		return all, nil
	}
	c.within = func(net.Addr, net.Addr) bool { return false }
	c.choose = func(paths []path, most int) (lanes []int, why []string) {
		for i := range min(len(paths), most) {
			lanes = append(lanes, i)
		}
		return lanes, make([]string, len(paths))
	}
	return ep, nil
}

func TestConformanceOfLanes(t *testing.T) {
	plugintest.Run(t, func(testing.TB) plugintest.Harness { return plugintest.Harness{Plugin: many{lanes: 3}} })
}

func TestLanesFlap(t *testing.T) { flaps(t, many{lanes: 3}) }

// allLanes waits for each lane of a pair, however late a busy machine makes it.
func allLanes(t *testing.T) {
	was := graceMin
	graceMin = helloBound
	t.Cleanup(func() { graceMin = was })
}

// Contexts are dealt out to the lanes in turn, each lane has an interface of its own, and what is sent by a context goes
// through its lane alone.
func TestLanesOfContexts(t *testing.T) {
	allLanes(t)
	const lanes = 3
	p := newPairOf(t, many{lanes: lanes}, 4096, time.Second)
	for r, e := range p.ep {
		if len(e.links[1-r]) != lanes || len(e.all) != lanes {
			t.Fatalf("rank %d has %d lanes", r, len(e.links[1-r]))
		}
	}
	for i, l := range p.ep[1].links[0] {
		if want := fmt.Sprintf("127.0.0.%d", i+1); l.at.Addr().String() != want {
			t.Errorf("lane %d goes to %s, want %s", i, l.at, want)
		}
	}
	for ctx := range int32(2 * lanes) {
		op := p.put(1, 0, []byte("x"), 0, 1)
		op.Context = ctx
		before := [lanes]uint64{}
		for i, l := range p.ep[0].links[1] {
			before[i] = l.rxSeq
		}
		ended := false
		if n := p.ep[1].Post([]netplugin.Op{op}); n != 1 {
			t.Fatal(n)
		}
		p.drive(func() bool { return ended }, func(_ int, c netplugin.Completion) { ended = c.Err == nil })
		for i, l := range p.ep[0].links[1] {
			if got := l.rxSeq - before[i]; (got == 1) != (int(ctx)%lanes == i) {
				t.Errorf("context %d: %d frames on lane %d", ctx, got, i)
			}
		}
	}
}

// No more lanes are made than either rank wants.
func TestFewestLanes(t *testing.T) {
	allLanes(t)
	for most, want := range map[[2]int]int{{2, 3}: 2, {3, 1}: 1, {1, 2}: 1, {0, 0}: 3, {16, 16}: 3} {
		p := newPairOf(t, many{lanes: 3, most: most}, 8, time.Second)
		if a, b := len(p.ep[0].all), len(p.ep[1].all); a != want || b != want {
			t.Errorf("at most %v: %d and %d lanes, want %d", most, a, b, want)
		}
	}
}

// A lane whose interface is gone goes on over another one.
func TestLaneGoesAround(t *testing.T) {
	allLanes(t)
	p := newPairOf(t, many{lanes: 2}, 4096, 10*time.Second)
	var cs [4]netplugin.Completion
	for _, e := range p.ep {
		e.Poll(cs[:]) // it takes its sockets
	}
	l := p.ep[1].links[0][1]
	// A port at which nobody listens: the address is refused. An address that answers nothing is tried between hosts.
	ln, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := ln.Addr().(*net.TCPAddr).AddrPort()
	ln.Close()
	c := p.ep[1].conn
	c.peers[0].Interfaces[1].Addrs[0] = dead
	c.reached(l, dead)
	_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	op := p.put(1, 7, []byte("around"), 2, 5)
	op.Context = 1
	for p.ep[1].Post([]netplugin.Op{op}) == 0 {
		p.ep[1].Poll(cs[:])
	}
	ended := 0
	p.drive(func() bool { return ended == 1 }, func(_ int, c netplugin.Completion) {
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		ended++
	})
	if at := c.reachedAt(l); at.Addr().String() != "127.0.0.1" || p.signal(0, 2) != 5 || string(p.win[0][7:13]) != "around" {
		t.Errorf("lane 1 is at %s, signal %d, %q", at, p.signal(0, 2), p.win[0][7:13])
	}
}

// greetAs dials a rank as another one, greets it, and returns the answer.
func greetAs(t *testing.T, at string, from int, g greeting) (net.Conn, greeting) {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if err := believe(from).Dial(conn, 0); err != nil {
		t.Fatal(err)
	}
	if err := writeGreeting(conn, g); err != nil {
		t.Fatal(err)
	}
	answer, err := readGreeting(conn)
	if err != nil {
		t.Fatalf("%+v: %v", g, err)
	}
	return conn, answer
}

// The first greeting says how many lanes there are; one that says otherwise is refused, and both ends tell it.
func TestLanesDisagree(t *testing.T) {
	ep, err := (Plugin{}).Open(netplugin.Config{Rank: 0, Ranks: 2, Auth: believe(0), Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	c := ep.(*endpoint).conn
	ctx, cancel := context.WithCancelCause(t.Context())
	met := make(chan error)
	go func() {
		met <- ep.(netplugin.Connector).Connect(ctx, [][]byte{ep.(netplugin.Connector).Address(), []byte(`{"Lanes":4}`)})
	}()
	at := c.ln.Addr().String()
	if _, g := greetAs(t, at, 1, greeting{lane: 0, lanes: 2}); g.code != greetOK || g.lanes != 2 {
		t.Errorf("the first greeting: %+v", g)
	}
	conn, g := greetAs(t, at, 1, greeting{lane: 1, lanes: 3})
	if g.code != greetLanes || g.lanes != 2 {
		t.Errorf("a greeting that disagrees: %+v", g)
	}
	if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("it is still open: %d, %v", n, err)
	}
	enough := errors.New("enough")
	cancel(enough)
	if err := <-met; !errors.Is(err, enough) || !strings.Contains(err.Error(), "(lane 1 of 2 has not come): rank 0 has 2 lanes to rank 1, which greets it with lane 1 of 3: they must agree") {
		t.Errorf("connect: %v", err)
	}
}

// So does the rank that dials, and in a world that is connected no other number is taken.
func TestLanesDisagreeLater(t *testing.T) {
	p := newPairOf(t, many{lanes: 2}, 4096, 300*time.Millisecond)
	if _, g := greetAs(t, p.ep[0].conn.ln.Addr().String(), 1, greeting{lanes: 1}); g.code != greetLanes || g.lanes != 2 {
		t.Errorf("answer %+v", g)
	}
	var cs [4]netplugin.Completion
	p.ep[1].Poll(cs[:])
	l := p.ep[1].links[0][1]
	l.lanes = 3
	op := p.put(1, 0, []byte("x"), 0, 1)
	op.Context = 1
	p.ep[1].Post([]netplugin.Op{op})
	_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	var end error
	for start := time.Now(); end == nil && time.Since(start) < 10*time.Second; {
		for _, c := range cs[:p.ep[1].Poll(cs[:])] {
			end = c.Err
		}
	}
	if !errors.Is(end, netplugin.ErrPeerLost) || !strings.Contains(end.Error(), "rank 0 has 2 lanes to rank 1, which greeted it with lane 1 of 3: they must agree") {
		t.Errorf("ended with %v", end)
	}
	// The other lane goes on.
	op = p.put(1, 0, []byte("y"), 1, 1)
	p.ep[1].Post([]netplugin.Op{op})
	p.drive(func() bool { return p.signal(0, 1) == 1 }, func(int, netplugin.Completion) {})
}

// Sockets that have proven themselves and do not greet yet cost no slot: another is served while all of them wait.
func TestProvenCostNoSlot(t *testing.T) {
	p := newPair(t, 4096, time.Second)
	at := p.ep[0].conn.ln.Addr().String()
	var held []net.Conn
	for range openAtOnce + 8 {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
		t.Cleanup(func() { conn.Close() })
		if err := believe(1).Dial(conn, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, g := greetAs(t, at, 1, greeting{lanes: 1}); g.code != greetOK {
		t.Errorf("answer %+v", g)
	}
	_ = held[0].SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // the one that is given up first
	if _, err := held[0].Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the first of %d sockets was given up before another was served: %v", len(held), err)
	}
}

func TestLanesOutOfRange(t *testing.T) {
	for _, n := range []int{-1, maxLanes + 1} {
		if _, err := (Plugin{}).Open(netplugin.Config{Ranks: 2, Lanes: n}); err == nil || !strings.Contains(err.Error(), "1 to 16 are accepted") {
			t.Errorf("%d lanes: %v", n, err)
		}
	}
}
