// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/doorbell-net/doorbell/netplugin"
)

// alone is an endpoint of two ranks whose one lane gets its sockets from the test: nobody connects.
func alone(rank int) *endpoint {
	e := &endpoint{cfg: netplugin.Config{Rank: rank, Ranks: 2}, local: map[uint32]region{}, waste: make([]byte, MaxBytes), out: make([]byte, 0, outBytes)}
	e.conn = &connector{e: e, last: map[int]error{}}
	e.conn.life, e.conn.stop = context.WithCancel(context.Background())
	e.conn.stop()
	l := newLink(e, 1-rank)
	e.links, e.all = make([][]*link, 2), []*link{l}
	e.links[1-rank] = e.all
	return e
}

// newPairByHand is a pair without sockets. All that happens to it happens in the order in which the test does it.
func newPairByHand(t testing.TB, bytes int) *pair {
	p := &pair{t: t}
	for r := range p.ep {
		p.ep[r] = alone(r)
		t.Cleanup(func() {
			l := p.ep[r].all[0]
			p.ep[r].conn.hand(l, nil)
			if l.fd >= 0 {
				unix.Close(l.fd)
			}
		})
	}
	p.share(bytes)
	return p
}

// greet is what two ranks that greet each other now give to their lanes. Each socket holds about so many bytes.
func (p *pair) greet(holds int) [2]*attach {
	p.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	var a [2]*attach
	for r := range a {
		if err := errors.Join(unix.SetNonblock(fds[r], true), unix.SetsockoptInt(fds[r], unix.SOL_SOCKET, unix.SO_SNDBUF, holds)); err != nil {
			p.t.Fatal(err)
		}
		a[r] = &attach{fd: fds[r], seen: p.ep[1-r].all[0].heard.Load()}
	}
	return a
}

func (p *pair) hand(r int, a *attach) { p.ep[r].conn.hand(p.ep[r].all[0], a) }

// meet gives both lanes a new socket.
func (p *pair) meet(holds int) {
	p.t.Helper()
	for r, a := range p.greet(holds) {
		p.hand(r, a)
		p.ep[r].all[0].adopt()
	}
}

func (p *pair) post(r int, token uint64, op netplugin.Op) {
	p.t.Helper()
	op.Token = token
	if ops := []netplugin.Op{op}; p.ep[r].Post(ops) != 1 || ops[0].State != netplugin.Posted {
		p.t.Fatalf("rank %d did not take operation %d: %v", r, token, ops[0].Err)
	}
}

// poll polls a rank once and notes what ended, by token; with nil, nothing is to.
func (p *pair) poll(r int, ends map[uint64]error) {
	p.t.Helper()
	var cs [64]netplugin.Completion
	for _, c := range cs[:p.ep[r].Poll(cs[:])] {
		if _, twice := ends[c.Token]; twice || ends == nil {
			p.t.Fatalf("operation %d ended with %v, and is not to, or has before", c.Token, c.Err)
		}
		ends[c.Token] = c.Err
	}
	if err := p.ep[r].all[0].dead; err != nil {
		p.t.Fatalf("rank %d: its lane is dead: %v", r, err)
	}
}

// settle polls both until so many operations have ended: with ErrBounds those that are to be refused, the others well.
func (p *pair) settle(want int, refused ...uint64) {
	p.t.Helper()
	ends := map[uint64]error{}
	for polls := 0; len(ends) < want; polls++ {
		if polls == 10_000 {
			p.t.Fatalf("%d operations of %d ended", len(ends), want)
		}
		p.poll(polls%2, ends)
	}
	for token, err := range ends {
		p.asExpected(token, err, slices.Contains(refused, token))
	}
}

// asExpected checks how an operation ended.
func (p *pair) asExpected(token uint64, err error, refused bool) {
	p.t.Helper()
	if refused != errors.Is(err, netplugin.ErrBounds) || !refused && err != nil {
		p.t.Errorf("operation %d ended with %v; it is to be refused: %v", token, err, refused)
	}
}

var errTorn = errors.New("torn by the test")

const ( // what a socket holds
	little = 4 << 10
	much   = 200 << 10
)

// A rank that has greeted reads the old socket until it takes the new one. What it then acknowledges goes no more, what is
// half written is written to its end, and that not from a source that is its owner's again.
func TestReadAfterGreeting(t *testing.T) {
	for _, c := range []struct{ ops, size int }{{80, 100}, {5, 20_000}} { // collected, and sent from where they stand
		p := newPairByHand(t, (c.ops+1)*c.size)
		p.meet(much)
		data := make([][]byte, c.ops)
		for i := range data {
			data[i] = bytes.Repeat([]byte{byte(1 + i)}, c.size)
			p.post(1, uint64(i), p.put(1, i*c.size, data[i], 0, 1))
		}
		dials, answers := p.ep[1].all[0], p.ep[0].all[0]
		dials.lose(errTorn)
		a := p.greet(little)
		answers.read()
		p.hand(1, a[1])
		dials.adopt()
		p.hand(0, a[0])
		answers.adopt()
		if answers.rxSeq != uint64(c.ops) || a[1].seen != 0 || dials.next >= uint64(c.ops) || dials.nextOff == 0 {
			t.Fatalf("of %d frames %d had effect, %d were greeted with; %d are written again, and %d bytes", c.ops, answers.rxSeq, a[1].seen, dials.next, dials.nextOff)
		}
		p.post(0, 1000, p.put(0, 0, []byte("x"), -1, 0)) // it acknowledges all
		dials.read()
		if dials.acked != uint64(c.ops) || dials.nextOff != 0 || len(dials.between) == 0 {
			t.Fatalf("of %d frames %d are acknowledged; %d bytes are left of the one that was half written", c.ops, dials.acked, len(dials.between))
		}
		for i := range data {
			clear(data[i])
		}
		p.post(1, 1001, p.put(1, c.ops*c.size, []byte("last"), 0, 1))
		p.settle(c.ops + 2)
		for i := range data {
			if got := p.win[0][i*c.size : (i+1)*c.size]; bytes.Count(got, []byte{byte(1 + i)}) != c.size {
				t.Errorf("put %d of %d bytes is wrong", i, c.size)
			}
		}
		if got, last := p.signal(0, 0), p.win[0][c.ops*c.size:][:4]; got != uint64(c.ops+1) || string(last) != "last" {
			t.Errorf("%d puts raised their signals, want %d; the last wrote %q", got, c.ops+1, last)
		}
	}
}

// A socket that is handed over later than its successor, and knows less, does no harm: it has ended, and another one comes.
func TestSocketThatIsLate(t *testing.T) {
	p := newPairByHand(t, 4096)
	p.meet(much)
	p.post(0, 0, p.put(0, 0, []byte("a"), -1, 0))
	p.post(1, 1, p.put(1, 0, []byte("b"), 0, 1))
	dials := p.ep[1].all[0]
	dials.lose(errTorn)
	late := p.greet(much)
	p.hand(1, late[1])
	dials.adopt() // and it writes
	dials.lose(errTorn)
	p.meet(much)
	p.settle(2)
	p.hand(0, late[0])
	for i := range 6 {
		p.poll(i%2, nil)
	}
	if l := p.ep[0].all[0]; l.fd >= 0 || dials.fd >= 0 {
		t.Fatal("a lane has a socket still")
	}
	p.meet(much)
	p.post(1, 2, p.put(1, 0, []byte("c"), 0, 1))
	p.settle(1)
	if p.signal(0, 0) != 2 || p.win[0][0] != 'c' {
		t.Errorf("signal %d, byte %q", p.signal(0, 0), p.win[0][0])
	}
}

// What came while the last frame was half written is acknowledged, though no frame comes behind that.
func TestCameWhileWriting(t *testing.T) {
	p := newPairByHand(t, 100_000)
	p.meet(little)
	p.post(0, 0, p.put(0, 0, make([]byte, 100_000), -1, 0))
	if l := p.ep[0].all[0]; l.next != 0 || l.nextOff == 0 {
		t.Fatal("the socket took all")
	}
	p.post(1, 1, p.put(1, 0, []byte("x"), -1, 0))
	p.settle(2)
}

// A refusal outlives the socket by which it did not get through: the greeting does not take what it refuses for done, nor do
// the frames that go again before it.
func TestRefusalGoesAgain(t *testing.T) {
	p := newPairByHand(t, 4096)
	p.meet(much)
	p.ep[0].Withdraw([]byte{1, 0, 0, 0})
	p.post(0, 0, p.put(0, 0, []byte("before it"), -1, 0))
	p.post(1, 1, p.put(1, 0, []byte("x"), 0, 1))
	refuses := p.ep[0].all[0]
	p.poll(0, nil)
	if refuses.rxSeq != 1 || refuses.next != 2 {
		t.Fatalf("%d frames came and %d were written, want 1 and 2", refuses.rxSeq, refuses.next)
	}
	p.ep[1].all[0].lose(errTorn)
	refuses.lose(errTorn)
	p.meet(much)
	p.settle(2, 1)
	p.post(1, 2, p.put(1, 0, nil, 0, 1)) // it acknowledges the refusal
	if p.settle(1, 2); len(refuses.noes) > 1 {
		t.Errorf("%d refusals are kept, want that of the last put", len(refuses.noes))
	}
}

// A refusal that waits for room is overtaken neither by an acknowledgement of what it refuses nor by an operation that has one.
func TestRefusalWithoutRoom(t *testing.T) {
	for _, read := range []bool{false, true} { // by the peer, so that all is written
		p := newPairByHand(t, 4096)
		p.meet(much)
		p.ep[0].Withdraw([]byte{1, 0, 0, 0})
		p.post(1, txDepth, p.put(1, 0, []byte("x"), 0, 1))
		refuses, refused := p.ep[0].all[0], p.ep[1].all[0]
		for i := range txDepth {
			if p.post(0, uint64(i), p.put(0, 0, nil, 0, 1)); read {
				refused.read()
			}
		}
		for range 2 * ackPasses {
			p.poll(0, nil)
		}
		if len(refuses.later) != 1 || read != (refuses.next == refuses.tail) {
			t.Fatalf("%d answers wait, %d frames of %d are written", len(refuses.later), refuses.next, refuses.tail)
		}
		if read {
			for range 2 * ackPasses {
				p.poll(1, nil)
			}
			if refuses.read(); refuses.acked != refuses.tail {
				t.Fatalf("%d frames of %d are acknowledged", refuses.acked, refuses.tail)
			}
			if n := p.ep[0].Post([]netplugin.Op{p.put(0, 0, nil, 0, 1)}); n != 0 {
				t.Error("an operation went before the answer")
			}
		}
		p.settle(txDepth+1, txDepth)
	}
}

// A source is read until all of it has come, also where it is to be refused.
func TestRefusedAtItsEnd(t *testing.T) {
	const size = 100_000
	p := newPairByHand(t, size)
	p.meet(little)
	p.post(1, 0, p.put(1, 0, make([]byte, size), 0, 1))
	p.poll(0, nil)
	p.ep[0].Withdraw([]byte{1, 0, 0, 0})
	ends := map[uint64]error{}
	for polls := 0; p.ep[1].all[0].sent == 0; polls++ {
		if p.poll(polls%2, ends); len(ends) > 0 {
			t.Fatal("it ended while it was written")
		}
	}
	p.settle(1, 0)
}
