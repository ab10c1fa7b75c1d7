// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/netif"
)

// Three ranks on two hosts, as far as boot ids say: descriptors go where they can, bytes everywhere.
func TestTCPMixed(t *testing.T) {
	checkLeaks(t)
	gs := mustJoin(t, tcpConfigs(t, 3, func(c *Config) { c.bootID = []string{"a", "a", "b"}[c.Rank] }))
	defer closeGroups(gs)
	each(gs, func(g Group) {
		fd := memfd(t, fmt.Sprint("fd of ", g.Rank()))
		defer closeFD(fd)
		all, err := g.AllGather(t.Context(), "mixed", Blob{Bytes: []byte(fmt.Sprint("rank ", g.Rank())), FDs: []int{fd}})
		if err != nil {
			t.Error(err)
			return
		}
		for r, b := range all {
			near := (r < 2) == (g.Rank() < 2)
			if g.CanPassFDs(r) != near || g.SameHost(r) != near || string(b.Bytes) != fmt.Sprint("rank ", r) {
				t.Errorf("rank %d of rank %d: passes %v, same host %v, want %v; %q", g.Rank(), r, g.CanPassFDs(r), g.SameHost(r), near, b.Bytes)
			}
			switch {
			case near && (len(b.FDs) != 1 || fdText(b.FDs[0]) != fmt.Sprint("fd of ", r)), !near && len(b.FDs) != 0:
				t.Errorf("rank %d of rank %d: %d descriptors", g.Rank(), r, len(b.FDs))
			case r != g.Rank():
				closeAll(b.FDs)
			}
		}
		if n := Machines(g); n != 2 {
			t.Errorf("%d machines", n)
		}
		if h := g.(*group).hosts[2]; len(h) == 0 || g.CanPassFDs(-1) || g.CanPassFDs(3) {
			t.Errorf("hosts %v", h)
		}
	})
}

func TestTCPForms(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "tcp:127.0.0.1", "localhost", "[::1]"} {
		t.Run(host, func(t *testing.T) {
			if host == "[::1]" {
				ln, err := net.Listen("tcp", "[::1]:0")
				if err != nil {
					t.Skip("needs IPv6: ", err)
				}
				ln.Close()
			}
			checkLeaks(t)
			addr := fmt.Sprintf("%s:%d", host, freePort(t))
			gs := mustJoin(t, configs(2, func(c *Config) { c.Addr, c.bootID = addr, fmt.Sprint(c.Rank) }))
			closeGroups(gs)
		})
	}
}

// A socket that another network namespace has is as if it were not there.
func TestTCPWhereUnixDoesNotReach(t *testing.T) {
	checkLeaks(t)
	cs := tcpConfigs(t, 2, nil)
	j := newJoiner(cs[0], address{}, time.Now())
	j.c.setDefaults()
	var at net.Listener
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	j.wg.Add(1)
	j.reach(ctx, 1, card{bootID: j.c.bootID, unix: "@doorbell.nobody", port: uint16(at.Addr().(*net.TCPAddr).Port), addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	if n := j.notesOf([]int{1}); len(n) != 1 || !strings.Contains(n[0], "127.0.0.1:") {
		t.Errorf("%q: TCP was not tried", n)
	}
	j.g.end(false, "")
}

func TestTCPPortTaken(t *testing.T) {
	checkLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c := testConfig(0, 2, ln.Addr().String())
	c.handshake = 50 * time.Millisecond
	_, err = Join(t.Context(), c)
	want := fmt.Sprintf("port %d is taken by another process", ln.Addr().(*net.TCPAddr).Port)
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "rank 0") || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v, want %q", err, want)
	}
	c.Addr = "192.0.2.1:29500" // of documentation, nobody's
	if _, err = Join(t.Context(), c); err == nil || !strings.Contains(err.Error(), "not an address of this host") {
		t.Error(err)
	}
	gs := makers["tcp"](t, 2)
	defer closeGroups(gs)
	c = testConfig(0, 2, fmt.Sprintf("127.0.0.1:%d", gs[0].(*group).port()))
	var te *RankTakenError
	if _, err = Join(t.Context(), c); !errors.As(err, &te) || !te.Joined || te.Other != os.Getpid() {
		t.Errorf("second rank 0: %v", err)
	}
}

func TestTCPNames(t *testing.T) {
	for what, lookup := range map[string]func(context.Context, string) ([]netip.Addr, error){
		"no such host": func(context.Context, string) ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "no such host", Name: "nobody", IsNotFound: true}
		},
		`looking up the name "nobody" takes long`: func(ctx context.Context, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	} {
		checkLeaks(t)
		c := testConfig(1, 2, "nobody:1")
		c.lookup, c.Timeout = lookup, 100*time.Millisecond
		start := time.Now()
		_, err := Join(t.Context(), c)
		if err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "nobody") || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 5*time.Second {
			t.Errorf("%v, want %q", err, what)
		}
	}
	// A name that comes while we wait, first to an address where nobody is.
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	_, port, _ := net.SplitHostPort(addr)
	cs := configs(2, nil)
	cs[0].Addr, cs[1].Addr = addr, "late.example:"+port
	tries := 0
	cs[1].lookup = func(context.Context, string) ([]netip.Addr, error) {
		if tries++; tries < 3 {
			return nil, &net.DNSError{Err: "no such host", Name: "late", IsNotFound: true}
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.77"), netip.MustParseAddr("127.0.0.1")}, nil
	}
	closeGroups(mustJoin(t, cs))
}

// A name that does not resolve is told of once, at the first failure, with how long it is tried again; that goes on
// while the join's deadline allows, also where the name server is sure, and no more often than a few times a second.
func TestTCPNamePolicy(t *testing.T) {
	lines := make(chan string, 64)
	c := testConfig(1, 2, "pod-0.svc:1")
	c.Log, c.slowName = tell(lines), 5*time.Millisecond
	asked := 0
	answers := []func(context.Context) ([]netip.Addr, error){
		func(context.Context) ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "no such host", Name: "pod-0.svc", IsNotFound: true}
		},
		func(context.Context) ([]netip.Addr, error) { return nil, nil },
		func(ctx context.Context) ([]netip.Addr, error) { // slow: until its line is there
			for len(lines) == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond) // sleep: a line's coming is no event that a lookup may take away
			}
			return nil, &net.DNSError{Err: "i/o timeout", IsTimeout: true, Name: "pod-0.svc"}
		},
		func(context.Context) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")}, nil
		},
	}
	c.lookup = func(ctx context.Context, _ string) ([]netip.Addr, error) {
		asked++
		return answers[asked-1](ctx)
	}
	c.setDefaults()
	j := newJoiner(c, address{}, time.Now().Add(-time.Hour)) // it has tried for an hour already
	defer j.g.end(false, "")
	j.point = &meetingPoint{host: "pod-0.svc", port: 1}
	ctx, cancel := context.WithTimeout(t.Context(), testBound)
	defer cancel()
	for i, want := range []string{"no such host", "has no address", "i/o timeout"} {
		if at := j.resolve(ctx); len(at) != 0 || j.failed() {
			t.Fatalf("try %d: %v, failed %v", i, at, j.fatal)
		}
		if n := j.notesOf([]int{0}); len(n) != 1 || !strings.Contains(n[0], `"pod-0.svc"`) || !strings.Contains(n[0], want) {
			t.Errorf("try %d: noted %q, want %q", i, n, want)
		}
		if i == 0 {
			if l := <-lines; !strings.Contains(l, "pod-0.svc") || !strings.Contains(l, "no such host") || !strings.Contains(l, "deadline in 20s") {
				t.Errorf("logged %q", l)
			}
		}
	}
	if l := drain(lines); strings.Count(l, "\n") != 1 || !strings.Contains(l, "takes long") {
		t.Errorf("logged %q", l)
	}
	if at := j.resolve(ctx); len(at) != 1 || at[0].String() != "10.0.0.1:1" || len(j.notesOf([]int{0})) != 0 {
		t.Errorf("%v, noted %q", at, j.notesOf([]int{0}))
	}
	// A whole join asks at a pace that a name server bears.
	c.lookup = func(context.Context, string) ([]netip.Addr, error) { asked++; return nil, errors.New("refused") }
	asked, c.Timeout = 0, 600*time.Millisecond
	if _, err := Join(t.Context(), c); err == nil || !strings.Contains(err.Error(), `the name "pod-0.svc" does not resolve: refused`) || asked < 3 || asked > 14 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}

func TestTCPMissing(t *testing.T) {
	checkLeaks(t)
	cs := tcpConfigs(t, 4, func(c *Config) { c.Timeout = 1200 * time.Millisecond })
	gs, errs := joinAll(t.Context(), []Config{cs[0], cs[2]})
	closeGroups(gs)
	for i, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "for ranks 1, 3 (of 4)") {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestTCPTwoClaimOneRank(t *testing.T) {
	checkLeaks(t)
	cs := tcpConfigs(t, 3, nil)
	gs, errs := joinAll(t.Context(), []Config{cs[0], cs[1], cs[1]})
	closeGroups(gs)
	for i, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "rank 1 is claimed by") {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestTCPMismatchAndToken(t *testing.T) {
	for what, edit := range map[string]func(*Config){
		"version differs": func(c *Config) { c.Version = 9 },
		"token differs":   func(c *Config) { c.Token = []byte("guess") },
		"size differs":    func(c *Config) { c.Size = 9 },
	} {
		checkLeaks(t)
		cs := tcpConfigs(t, 2, func(c *Config) { c.Timeout = 500 * time.Millisecond })
		edit(&cs[1])
		gs, errs := joinAll(t.Context(), cs)
		closeGroups(gs)
		if errs[1] == nil || !strings.Contains(errs[1].Error(), what) || errs[0] == nil {
			t.Errorf("%s: %v", what, errs)
		}
	}
}

func TestTCPInterfaces(t *testing.T) {
	checkLeaks(t)
	c := testConfig(0, 2, "127.0.0.1:1")
	c.Interfaces = []netif.Interface{{Name: "eth9", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, {Name: "eth8", Up: true, Addrs: []netip.Addr{netip.MustParseAddr("fe80::1%eth8")}}}
	if _, err := Join(t.Context(), c); err == nil || !strings.Contains(err.Error(), "eth9") || !strings.Contains(err.Error(), "eth8") {
		t.Error(err)
	}
	// Offered addresses that lead nowhere are passed over.
	cs := tcpConfigs(t, 3, func(c *Config) {
		c.bootID = fmt.Sprint(c.Rank)
		c.Interfaces = []netif.Interface{{Name: "a", Up: true, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("127.0.0.1")}}}
	})
	closeGroups(mustJoin(t, cs))
}

// Strangers at rank 0's port, before, while and after the ranks meet.
func TestTCPStrangers(t *testing.T) {
	checkLeaks(t)
	cs := tcpConfigs(t, 3, func(c *Config) { c.handshake, c.bootID = 200*time.Millisecond, fmt.Sprint(c.Rank) })
	// A recorded handshake of the same job, ended before it was accepted.
	recorded := recordMeeting(t, cs)
	h := newHello(&cs[1], 0)
	fair := h.encode()
	meet := h
	meet.purpose = forMeeting
	guess := meet.encode()
	strangers := map[string][]byte{
		"silent": nil, "http": []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "garbage": slices.Repeat([]byte{0xa5, 0x5a, 0}, 100),
		"hello only": fair[:], "wrong proof": append(slices.Clone(fair[:]), make([]byte, proofBytes)...),
		"guess": append(slices.Clone(guess[:]), make([]byte, proofBytes)...), "replayed": recorded,
	}
	first := make(chan error, 1)
	var g0 Group
	go func() {
		var err error
		g0, err = Join(t.Context(), cs[0])
		first <- err
	}()
	var open []net.Conn
	visit := func() {
		for what, b := range strangers {
			for _, stay := range []bool{false, true} {
				conn := dialRendezvous(t, cs[0])
				if _, err := conn.Write(b); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%s: %v", what, err)
				}
				if stay {
					open = append(open, conn)
				} else {
					conn.Close()
				}
			}
		}
	}
	visit()
	gs, errs := joinAll(t.Context(), cs[1:])
	errs = append(errs, <-first)
	gs = append(gs, g0)
	defer closeGroups(gs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	visit()
	undisturbed(t, gs, open)
}

// recordMeeting plays the listener of another run of the job and returns what a rank said to it.
func recordMeeting(t *testing.T, cs []Config) []byte {
	a, b := pipe(t)
	said := make(chan []byte)
	go func() {
		r := &recorder{Conn: b}
		answerShake(r, newHello(&cs[0], 0), cs[0].Token, func(hello) uint8 { return codeAccept })
		b.Close()
		said <- r.got
	}()
	h := newHello(&cs[1], 0)
	h.purpose = forMeeting
	if _, _, err := dialShake(a, &h, cs[1].Token); err != nil {
		t.Fatal(err)
	}
	return <-said
}

type recorder struct {
	net.Conn
	got []byte
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.got = append(r.got, b[:n]...)
	return n, err
}

func dialRendezvous(t testing.TB, c Config) net.Conn {
	ctx, cancel := context.WithTimeout(t.Context(), testBound)
	defer cancel()
	for p := (pause{}); ; {
		conn, err := net.Dial("tcp", c.Addr)
		if err == nil {
			conn.SetDeadline(time.Now().Add(testBound))
			return conn
		}
		if !p.wait(ctx) {
			t.Fatal(err)
		}
	}
}

// Without a token, hosts that are not of the job are dropped once it is known, before they can say a word.
func TestTCPForeignHosts(t *testing.T) {
	checkLeaks(t)
	line := make(chan string, 16)
	cs := tcpConfigs(t, 2, func(c *Config) {
		c.Token, c.bootID = nil, fmt.Sprint(c.Rank)
		c.Log = slog.New(slog.NewTextHandler(lineWriter(line), nil))
	})
	gs := mustJoin(t, cs)
	g := gs[0].(*group)
	if l := <-line; !strings.Contains(l, "unauthenticated") {
		t.Errorf("logged %q", l)
	}
	if len(line) != 0 {
		t.Errorf("logged more: %q", <-line)
	}
	for range 2 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 99)}}
		conn, err := d.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", g.port()))
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(testBound))
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %d, %v", n, err)
		}
		conn.Close()
	}
	if l := <-line; !strings.Contains(l, "127.0.0.99") || !strings.Contains(l, "not a host of this job") || len(line) != 0 {
		t.Errorf("logged %q, and %d more", l, len(line))
	}
	closeGroups(gs)
}

// port is where rank 0 of a test listens.
func (g *group) port() (port int) {
	for _, l := range g.tr.(*mesh).all() {
		if a, ok := l.conn.LocalAddr().(*net.TCPAddr); ok {
			return a.Port
		}
	}
	return 0
}

// A rank that dies or gives up while others wait for the table ends their join at once, with its reason.
func TestTCPDeathWhileMeeting(t *testing.T) {
	for what, ctxOf := range map[string]bool{"departed": true, "lost": false} {
		checkLeaks(t)
		cs := tcpConfigs(t, 3, nil)
		done := make(chan error, 1)
		var wg sync.WaitGroup
		wg.Go(func() { _, err := Join(t.Context(), cs[0]); done <- err })
		conn := dialRendezvous(t, cs[0])
		h := newHello(&cs[1], 0)
		h.purpose = forMeeting
		if _, code, err := dialShake(conn, &h, cs[1].Token); err != nil || code != codeAccept {
			t.Fatal(code, err)
		}
		payload, _ := appendCard(nil, &card{port: 1})
		wire, _ := appendFrame(nil, &frame{kind: kindCard, payload: payload})
		if ctxOf {
			bye, _ := appendFrame(nil, &frame{kind: kindGoodbye, payload: []byte("no memory")})
			wire = append(wire, bye...)
		}
		conn.Write(wire)
		if !ctxOf {
			conn.Close()
		}
		err := <-done
		if err == nil || !strings.Contains(err.Error(), "rank 1") || !strings.Contains(err.Error(), what) || ctxOf != strings.Contains(err.Error(), "no memory") {
			t.Errorf("%s: %v", what, err)
		}
		conn.Close()
		wg.Wait()
	}
}
