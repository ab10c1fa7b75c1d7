// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/doorbell-net/doorbell/internal/testenv"
	"github.com/doorbell-net/doorbell/netplugin"
)

// believe is an Auth that says who it is and believes what it is told; proofs are tested where they are made.
type believe int

func (a believe) Dial(conn net.Conn, to int) error {
	_, err := conn.Write(binary.LittleEndian.AppendUint32([]byte("rank"), uint32(a)))
	return err
}

func (a believe) Answer(conn net.Conn) (from int, err error) {
	var b [8]byte
	if _, err = io.ReadFull(conn, b[:]); err == nil && string(b[:4]) != "rank" {
		err = errors.New("a stranger")
	}
	return int(binary.LittleEndian.Uint32(b[4:])), err
}

// pair is two ranks that one goroutine drives.
type pair struct {
	t   testing.TB
	ep  [2]*endpoint
	win [2][]byte
	sig [2][]byte
	to  [2]netplugin.Region // the other's window
	ts  [2]netplugin.Region // the other's signals
}

func newPair(t testing.TB, bytes int, timeout time.Duration) *pair {
	t.Helper()
	return newPairOf(t, Plugin{}, bytes, timeout)
}

func newPairOf(t testing.TB, plugin netplugin.Plugin, bytes int, timeout time.Duration) *pair {
	t.Helper()
	p := &pair{t: t}
	addrs := make([][]byte, 2)
	for r := range p.ep {
		e, err := plugin.Open(netplugin.Config{Rank: r, Ranks: 2, Auth: believe(r), Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		p.ep[r] = e.(*endpoint)
		addrs[r] = p.ep[r].Address()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	met := make(chan error, 2)
	for _, e := range p.ep {
		go func() { met <- e.Connect(ctx, addrs) }()
	}
	for range p.ep {
		if err := <-met; err != nil {
			t.Fatal(err)
		}
	}
	p.share(bytes)
	return p
}

// share makes each rank's window and signals, and has the other import them.
func (p *pair) share(bytes int) {
	p.t.Helper()
	for r := range p.ep {
		p.win[r], p.sig[r] = make([]byte, bytes), make([]byte, 4096)
	}
	for r, e := range p.ep {
		w, err1 := p.ep[1-r].Export(p.win[1-r], false)
		s, err2 := p.ep[1-r].Export(p.sig[1-r], true)
		var err3, err4 error
		p.to[r], err3 = e.Import(1-r, netplugin.Key{Bytes: w, Size: bytes})
		p.ts[r], err4 = e.Import(1-r, netplugin.Key{Bytes: s, Size: 4096})
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *pair) put(r int, off int, data []byte, signal int, add uint64) netplugin.Op {
	op := netplugin.Op{Kind: netplugin.Put, Peer: int32(1 - r), Dst: p.to[r], DstOff: uint64(off), Data: data}
	if signal >= 0 {
		op.Raise, op.Strong, op.SigDst, op.SigOff, op.SigAdd = true, true, p.ts[r], uint64(8*signal), add
	}
	return op
}

func (p *pair) signal(r, i int) uint64 { return atomic.LoadUint64(wordAt(p.sig[r], uint64(8*i))) }

// drive polls both until done says so, for 20 s at most.
func (p *pair) drive(done func() bool, ended func(r int, c netplugin.Completion)) {
	p.t.Helper()
	end := time.Now().Add(20 * time.Second)
	var cs [32]netplugin.Completion
	for !done() {
		for r, e := range p.ep {
			for _, c := range cs[:e.Poll(cs[:])] {
				ended(r, c)
			}
		}
		if time.Now().After(end) {
			p.t.Fatal("no end within 20 s")
		}
		runtime.Gosched()
	}
}

// TestPutOrders: what a rank did before it put something is there for who receives it, for the race detector too.
func TestPutOrders(t *testing.T) {
	for _, bytes := range []int{8, gatherBelow + 1, 2 * copyBelow} { // sent in one piece and in several; received so and straight
		p := newPair(t, bytes, time.Second)
		did, ended := 0, make(chan struct{})
		end := time.Now().Add(20 * time.Second)
		go func() {
			defer close(ended)
			did = 1
			p.ep[0].Post([]netplugin.Op{p.put(0, 0, make([]byte, bytes), 0, 1)})
			for cs := make([]netplugin.Completion, 1); p.ep[0].Poll(cs) == 0 && time.Now().Before(end); {
				runtime.Gosched()
			}
		}()
		came, goes := false, true
		for goes {
			select {
			case <-ended:
				goes = false
			default:
				runtime.Gosched()
			}
			p.ep[1].Poll(nil)
			if !came && p.signal(1, 0) == 1 {
				if came = true; did != 1 {
					t.Error("the put came before what was done before it")
				}
			}
		}
		if !came {
			t.Fatal("the put does not come")
		}
	}
}

// Sockets that break again and again lose nothing and double nothing.
func TestLinkFlaps(t *testing.T) { flaps(t, Plugin{}) }

func flaps(t *testing.T, plugin netplugin.Plugin) {
	const ops, most = 400, 40_000
	p := newPairOf(t, plugin, ops*most, 10*time.Second)
	rng := testenv.Random(t)
	sent := [2][][]byte{}
	var want [2]uint64
	var queue [2][]netplugin.Op
	for r := range p.ep {
		for i := range ops {
			b := make([]byte, rng.IntN(most))
			for j := range b {
				b[j] = byte(rng.Uint32())
			}
			sent[r] = append(sent[r], b)
			add := uint64(rng.IntN(100))
			want[1-r] += add
			op := p.put(r, i*most, b, 0, add)
			op.Token, op.Context = uint64(i), int32(i%7)
			queue[r] = append(queue[r], op)
		}
	}
	left := [2]int{ops, ops}
	breaks := 0
	p.drive(func() bool {
		for r, e := range p.ep {
			n := e.Post(queue[r][:min(len(queue[r]), rng.IntN(8))])
			for _, op := range queue[r][:n] {
				if op.State == netplugin.Failed {
					t.Fatal(op.Err)
				}
			}
			queue[r] = queue[r][n:]
		}
		if l := p.ep[rng.IntN(2)].all[rng.IntN(len(p.ep[0].all))]; l.fd >= 0 && breaks < 30 && rng.IntN(4) == 0 {
			breaks++
			_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
		}
		return left[0] == 0 && left[1] == 0
	}, func(r int, c netplugin.Completion) {
		if c.Err != nil {
			t.Fatalf("rank %d, operation %d: %v", r, c.Token, c.Err)
		}
		left[r]--
	})
	for r := range p.ep {
		if got := p.signal(r, 0); got != want[r] {
			t.Errorf("rank %d: signal is %d, want %d (%d breaks)", r, got, want[r], breaks)
		}
		for i, b := range sent[1-r] {
			if string(p.win[r][i*most:i*most+len(b)]) != string(b) {
				t.Errorf("rank %d: put %d of %d bytes is wrong", r, i, len(b))
			}
		}
	}
	if breaks == 0 {
		t.Error("nothing broke")
	}
}

// A peer that does not come back is lost, within the time given, and what was on its way ends with that.
func TestPeerStaysAway(t *testing.T) {
	for r := range 2 { // the one that dials, and the one that is dialled
		p := newPair(t, 4096, 300*time.Millisecond)
		gone := p.ep[1-r]
		gone.conn.stop() // it does not answer any more
		gone.conn.ln.Close()
		var cs [4]netplugin.Completion
		p.ep[r].Poll(cs[:]) // it takes its socket
		op := []netplugin.Op{p.put(r, 0, []byte("x"), 0, 1)}
		if n := p.ep[r].Post(op); n != 1 || op[0].State != netplugin.Posted {
			t.Fatal(n, op[0].State, op[0].Err)
		}
		_ = unix.Shutdown(p.ep[r].all[0].fd, unix.SHUT_RDWR)
		var end error
		start := time.Now()
		for end == nil && time.Since(start) < 10*time.Second {
			for _, c := range cs[:p.ep[r].Poll(cs[:])] {
				end = c.Err
			}
			runtime.Gosched()
		}
		if !errors.Is(end, netplugin.ErrPeerLost) {
			t.Errorf("rank %d: ended with %v", r, end)
		}
		if n := p.ep[r].Post(op); n != 1 || !errors.Is(op[0].Err, netplugin.ErrPeerLost) {
			t.Errorf("rank %d: a later post: %v", r, op[0].Err)
		}
	}
}

// A rank that closes before anybody has polled it says so: its peer does not wait for it to come back.
func TestClosesUnpolled(t *testing.T) {
	p := newPair(t, 4096, 300*time.Millisecond)
	if err := p.ep[1].Close(); err != nil {
		t.Fatal(err)
	}
	p.drive(func() bool { return p.ep[0].all[0].dead != nil }, nil)
	if err := p.ep[0].all[0].dead; !strings.Contains(err.Error(), "rank 1 has closed its endpoint") {
		t.Errorf("it was lost by: %v", err)
	}
}

// A peer that came back in time is not lost because somebody finds out late: not while its socket waits to be taken, nor
// when it has one, nor when a later one breaks.
func TestLossThatIsLate(t *testing.T) {
	p := newPair(t, 4096, 10*time.Second)
	l, c := p.ep[0].links[1][0], p.ep[0].conn
	c.giveUp(l, l.breaks, 0) // its first socket waits
	var cs [4]netplugin.Completion
	for range 2 {
		p.ep[0].Poll(cs[:])
		c.giveUp(l, l.breaks, 0) // it has a socket
	}
	p.ep[0].Poll(cs[:])
	_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	for l.fd >= 0 {
		p.ep[0].Poll(cs[:])
	}
	c.giveUp(l, l.breaks-1, 0) // of the break before
	if p.ep[0].Poll(cs[:]); l.dead != nil {
		t.Fatalf("lost: %v", l.dead)
	}
	p.ep[1].Post([]netplugin.Op{p.put(1, 0, []byte("x"), 0, 3)})
	p.drive(func() bool { return p.signal(0, 0) == 3 }, func(int, netplugin.Completion) {})
	_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	for end := time.Now().Add(10 * time.Second); l.fd >= 0 && time.Now().Before(end); {
		p.ep[0].Poll(cs[:])
	}
	l.fresh.Store(nil)
	p.ep[1].conn.stop()
	c.giveUp(l, l.breaks, 0)
	if p.ep[0].Poll(cs[:]); !errors.Is(l.dead, netplugin.ErrPeerLost) {
		t.Errorf("not lost: %v", l.dead)
	}
}

// A frame of another member set has no effect, and its source learns that the peer is lost to it.
func TestOtherEpoch(t *testing.T) {
	p := newPair(t, 4096, 300*time.Millisecond)
	p.ep[1].cfg.Epoch++
	op := []netplugin.Op{p.put(1, 0, []byte("x"), 0, 1)}
	if n := p.ep[1].Post(op); n != 1 || op[0].State == netplugin.Failed {
		t.Fatal(n, op[0].Err)
	}
	var end error
	p.drive(func() bool { return end != nil }, func(_ int, c netplugin.Completion) { end = c.Err })
	if !errors.Is(end, netplugin.ErrPeerLost) || p.signal(0, 0) != 0 || p.win[0][0] != 0 {
		t.Errorf("ended with %v, signal %d, byte %d", end, p.signal(0, 0), p.win[0][0])
	}
	if dead := p.ep[0].links[1][0].dead; !errors.Is(dead, errWire) || !strings.Contains(dead.Error(), "epoch 1, 0 is accepted") {
		t.Errorf("at the target: %v", dead)
	}
}

// Strangers cost nothing but a slot: the ranks go on.
func TestStrangers(t *testing.T) {
	p := newPair(t, 4096, time.Second)
	addr := p.ep[0].conn.ln.Addr().String()
	var held []net.Conn
	for _, say := range []string{"", "GET / HTTP/1.1\r\n\r\n", "rank\xff\xff\xff\xff", "rank\x00\x00\x00\x00", string(make([]byte, 4096))} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
		if _, err := io.WriteString(c, say); err != nil {
			t.Fatal(err)
		}
	}
	op := []netplugin.Op{p.put(1, 5, []byte("hello"), 3, 7)}
	p.ep[1].Post(op)
	p.drive(func() bool { return p.signal(0, 3) == 7 }, func(int, netplugin.Completion) {})
	if string(p.win[0][5:10]) != "hello" {
		t.Errorf("got %q", p.win[0][5:10])
	}
	for _, c := range held {
		c.Close()
	}
}

// A window that its owner withdrew is refused there, with no signal, and so is all that follows in its context; others
// go on.
func TestRefusedAtTarget(t *testing.T) {
	p := newPair(t, 64<<10, time.Second)
	extra := make([]byte, 64<<10)
	key, err := p.ep[1].Export(extra, false)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := p.ep[0].Import(1, netplugin.Key{Bytes: key, Size: len(extra)})
	if err != nil {
		t.Fatal(err)
	}
	p.ep[1].Withdraw(key)
	big := make([]byte, 50_000)
	for i := range big {
		big[i] = 1
	}
	bad := p.put(0, 0, big, 0, 1)
	bad.Dst, bad.Token = gone, 1
	after := p.put(0, 0, []byte("after"), 1, 1)
	after.Token = 2
	other := p.put(0, 100, []byte("other"), 2, 1)
	other.Context, other.Token = 1, 3
	if n := p.ep[0].Post([]netplugin.Op{bad, after, other}); n != 3 {
		t.Fatal(n)
	}
	ends := map[uint64]error{}
	p.drive(func() bool { return len(ends) == 3 }, func(_ int, c netplugin.Completion) { ends[c.Token] = c.Err })
	if !errors.Is(ends[1], netplugin.ErrBounds) || ends[2] == nil || ends[3] != nil {
		t.Errorf("ends: %v", ends)
	}
	if p.signal(1, 0) != 0 || p.signal(1, 1) != 0 || p.signal(1, 2) != 1 {
		t.Errorf("signals %d %d %d, want 0 0 1", p.signal(1, 0), p.signal(1, 1), p.signal(1, 2))
	}
	for _, b := range extra {
		if b != 0 {
			t.Fatal("a window that was withdrawn was written")
		}
	}
}

// A number is not used twice: a frame for a region that is gone does not land in the next one.
func TestRegionMadeAgain(t *testing.T) {
	p := newPair(t, 4096, time.Second)
	p.ep[1].Withdraw([]byte{1, 0, 0, 0}) // the window of rank 1
	next := make([]byte, 4096)
	if _, err := p.ep[1].Export(next, false); err != nil {
		t.Fatal(err)
	}
	op := []netplugin.Op{p.put(0, 0, []byte("late"), 0, 1)}
	p.ep[0].Post(op)
	var end error
	p.drive(func() bool { return end != nil }, func(_ int, c netplugin.Completion) { end = c.Err })
	if !errors.Is(end, netplugin.ErrBounds) || p.signal(1, 0) != 0 || next[0] != 0 || p.win[1][0] != 0 {
		t.Errorf("ended with %v, signal %d, bytes %d and %d", end, p.signal(1, 0), next[0], p.win[1][0])
	}
}

// A region that goes while a body is received into it gets no more of it.
func TestWithdrawnInTheMiddle(t *testing.T) {
	p := newPair(t, MaxBytes, time.Second)
	big := make([]byte, MaxBytes)
	for i := range big {
		big[i] = 1
	}
	var cs [4]netplugin.Completion
	p.ep[0].Poll(cs[:]) // it takes its socket
	ops := make([]netplugin.Op, 16)
	for i := range ops {
		ops[i] = p.put(0, 0, big, 0, 1)
	}
	if n := p.ep[0].Post(ops); n != len(ops) { // more than sockets hold
		t.Fatal(n)
	}
	l := p.ep[1].links[0][0]
	for end := time.Now().Add(10 * time.Second); len(l.body) == 0; runtime.Gosched() {
		p.ep[1].Poll(cs[:])
		if time.Now().After(end) {
			t.Fatal("no body within 10 s")
		}
	}
	p.ep[1].Withdraw([]byte{1, 0, 0, 0})
	clear(p.win[1])
	good, refused := 0, 0
	p.drive(func() bool { return good+refused == len(ops) }, func(_ int, c netplugin.Completion) {
		if c.Err == nil {
			good++
		} else {
			refused++
		}
	})
	if refused == 0 || p.signal(1, 0) != uint64(good) || bytes.Count(p.win[1], []byte{1}) != 0 {
		t.Errorf("%d ended well, %d refused, signal %d, %d bytes written afterwards", good, refused, p.signal(1, 0), bytes.Count(p.win[1], []byte{1}))
	}
}

// FuzzStream: whatever comes over a socket that was proven, nothing outside the regions is written and nothing crashes.
func FuzzStream(f *testing.F) {
	frame := func(h header, body string) []byte {
		var b [headerBytes]byte
		h.length = uint32(len(body))
		h.encode(&b)
		return append(b[:], body...)
	}
	f.Add(frame(header{kind: kindPut, seq: 1, region: 1, flags: flagSignal, sigRegion: 2, sigAdd: 1}, "payload"), 3)
	f.Add(append(frame(header{kind: kindPut, seq: 1, region: 1}, string(make([]byte, 9000))), frame(header{kind: kindGet, seq: 2, region: 1}, "")...), 100)
	f.Add(frame(header{kind: kindNo, seq: 1, off: 1}, ""), 1)
	f.Add(frame(header{kind: kindReply, seq: 1, off: 1}, "abc"), 7)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), 5)
	f.Fuzz(func(t *testing.T, stream []byte, cut int) {
		e := alone(0)
		guard := make([]byte, 3*8192)
		for i := range guard {
			guard[i] = 0xa5
		}
		win, sig := guard[8192:8192+4096], guard[16384:16384+64]
		_, _ = e.Export(win, false)
		_, _ = e.Export(sig, true)
		l := e.all[0]
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			err = errors.Join(unix.SetNonblock(fds[0], true), unix.SetNonblock(fds[1], true))
		}
		if err != nil {
			t.Skip(err)
		}
		defer unix.Close(fds[1])
		l.fd = fds[0]
		cut = max(1, cut%5000)
		for len(stream) > 0 && l.fd >= 0 {
			n := min(cut, len(stream))
			w, err := unix.Write(fds[1], stream[:n])
			if err != nil {
				break
			}
			stream = stream[w:]
			l.read()
			l.catchUp()
			l.write()
			l.acknowledge()
		}
		if l.fd >= 0 {
			unix.Close(l.fd)
		}
		for i, b := range guard {
			in := i >= 8192 && i < 8192+4096 || i >= 16384 && i < 16384+64
			if !in && b != 0xa5 {
				t.Fatalf("byte %d outside the regions was written", i)
			}
		}
	})
}
