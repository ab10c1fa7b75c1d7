// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/netplugin"
)

// paper is a network that writes down what it is asked for, and says that it is done.
type paper struct {
	netplugin.Endpoint
	said      []netplugin.Op
	posted    bool // operations end in Poll
	ends      []netplugin.Completion
	forgotten []netplugin.Region
	cuts      []int
	again     func() bool
	lost      []int
}

func (p *paper) Name() string { return "paper" }
func (p *paper) Powers() netplugin.Powers {
	return netplugin.Powers{Ordered: true, RemoteCompletion: true, MaxBytes: 1 << 20}
}
func (p *paper) Open(netplugin.Config) (netplugin.Endpoint, error) { return p, nil }
func (p *paper) Import(peer int, _ netplugin.Key) (netplugin.Region, error) {
	return netplugin.Region(1 + peer), nil
}
func (p *paper) Forget(r netplugin.Region)               { p.forgotten = append(p.forgotten, r) }
func (p *paper) Close() error                            { return nil }
func (p *paper) Cut(peer int)                            { p.cuts = append(p.cuts, peer) }
func (p *paper) Duplicate(again func() bool)             { p.again = again }
func (p *paper) Address() []byte                         { return nil }
func (p *paper) Connect(context.Context, [][]byte) error { return nil }
func (p *paper) Lose(peer int)                           { p.lost = append(p.lost, peer) }
func (p *paper) Moved() bool                             { return false }
func (p *paper) Poll(done []netplugin.Completion) int {
	n := copy(done, p.ends)
	p.ends = p.ends[n:]
	return n
}

func (p *paper) Post(ops []netplugin.Op) int {
	for i := range ops {
		op := &ops[i]
		if p.said = append(p.said, *op); !p.posted {
			op.State = netplugin.Done
			continue
		}
		op.State = netplugin.Posted
		p.ends = append(p.ends, netplugin.Completion{Token: op.Token})
	}
	return len(ops)
}

const (
	rounds = 400
	peers  = 3
)

// run is what came of operations under a text of faults.
type run struct {
	net   *paper
	e     netplugin.Endpoint
	ops   []netplugin.Op
	polls int
	again int // times that Post took less
	ends  []netplugin.Completion
}

func open(t *testing.T, text string, net *paper, log *slog.Logger) netplugin.Endpoint {
	t.Helper()
	p, err := wrapper{}.Wrap(net, netplugin.Faults{Text: text})
	if err != nil {
		t.Fatal(err)
	}
	e, err := p.Open(netplugin.Config{Rank: 0, Ranks: peers, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	for r := range peers {
		if _, err := e.Import(r, netplugin.Key{Size: rounds * 10}); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// play posts operations of two contexts to three peers, four at a time, and polls once after each Post.
func play(t *testing.T, text string, net *paper) *run {
	t.Helper()
	r := &run{net: net, e: open(t, text, net, nil)}
	for i := range rounds {
		to := int32(i % peers)
		op := netplugin.Op{Kind: netplugin.Put, Context: int32(i/peers) % 2, Peer: to, Dst: netplugin.Region(1 + to), DstOff: uint64(10 * i),
			Data: bytes.Repeat([]byte{byte(i)}, 10), Raise: true, SigDst: netplugin.Region(1 + to), SigOff: 8, SigAdd: uint64(i), Token: uint64(i) << 40}
		r.ops = append(r.ops, op)
	}
	var done [7]netplugin.Completion
	left, taken := rounds, 0
	for left > 0 {
		if taken < rounds {
			rest := r.ops[taken:min(taken+4, rounds)]
			n := r.e.Post(rest)
			for i := range rest[:n] {
				if rest[i].State != netplugin.Posted {
					left--
				}
			}
			if taken += n; n < len(rest) {
				r.again++
			}
		}
		got := done[:r.e.Poll(done[:])]
		r.ends = append(r.ends, got...)
		left -= len(got)
		if r.polls++; r.polls > 100*rounds {
			t.Fatalf("%q: %d operations have no end", text, left)
		}
	}
	return r
}

// order is which operations arrived, of one lane if peer is not -1, by the offset of their first byte.
func (r *run) order(context, peer int32) (at []uint64) {
	for _, op := range r.net.said {
		if peer < 0 || op.Peer == peer && op.Context == context {
			at = append(at, op.DstOff)
		}
	}
	return at
}

func (r *run) lanesSorted() bool {
	for c := range int32(2) {
		for p := range int32(peers) {
			if !slices.IsSorted(r.order(c, p)) {
				return false
			}
		}
	}
	return true
}

// whole says whether each operation arrived once, with all its bytes, and its signal with the last of them.
func (r *run) whole(t *testing.T) {
	t.Helper()
	got := map[uint64]int{}
	var sum uint64
	for _, op := range r.net.said {
		i := op.DstOff / 10
		got[i] += len(op.Data)
		for _, b := range op.Data {
			if b != byte(i) {
				t.Fatalf("operation %d brings byte %d", i, b)
			}
		}
		if op.Raise {
			sum += op.SigAdd
			if op.DstOff+uint64(len(op.Data)) != 10*i+10 {
				t.Errorf("operation %d: the signal came with bytes %d to %d", i, op.DstOff, op.DstOff+uint64(len(op.Data)))
			}
		}
	}
	for i := range uint64(rounds) {
		if got[i] != 10 {
			t.Errorf("operation %d brought %d bytes", i, got[i])
		}
	}
	if sum != rounds*(rounds-1)/2 || len(r.ends) != rounds {
		t.Errorf("signals are %d, %d operations ended in Poll (want %d, %d)", sum, len(r.ends), rounds*(rounds-1)/2, rounds)
	}
}

// TestEachFault: each does what it says, that alone, and loses nothing.
func TestEachFault(t *testing.T) {
	straight := play(t, "again=0,unordered", &paper{}) // nothing happens, by way of everything
	straight.whole(t)
	for _, c := range []struct {
		text string
		seen func(r *run) bool
	}{
		{"reorder", func(r *run) bool { return !slices.IsSorted(r.order(0, -1)) && r.lanesSorted() }},
		{"reorder,unordered", func(r *run) bool { return !r.lanesSorted() }},
		{"unordered", func(r *run) bool { return slices.IsSorted(r.order(0, -1)) }},
		{"delay", func(r *run) bool { return r.polls > straight.polls+10 && r.lanesSorted() }},
		{"split", func(r *run) bool { return len(r.net.said) > rounds*11/10 && slices.IsSorted(r.order(0, -1)) }},
		{"again", func(r *run) bool { return r.again > rounds/20 && slices.IsSorted(r.order(0, -1)) }},
		{"stall", func(r *run) bool { return !slices.IsSorted(r.order(0, -1)) && r.lanesSorted() && len(r.net.cuts) == 0 }},
		{"cut", func(r *run) bool { return len(r.net.cuts) > 0 && !slices.Contains(r.net.cuts, 0) && r.lanesSorted() }},
		{"duplicate", func(r *run) bool {
			n := 0
			for range 1000 {
				if r.net.again() {
					n++
				}
			}
			return n > 100 && n < 300 && slices.IsSorted(r.order(0, -1))
		}},
		{"all", func(r *run) bool {
			return r.again > 0 && len(r.net.said) > rounds && len(r.net.cuts) > 0 && r.lanesSorted()
		}},
	} {
		for _, posted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,posted=%v", c.text, posted), func(t *testing.T) {
				r := play(t, c.text, &paper{posted: posted})
				r.whole(t)
				if !c.seen(r) {
					t.Errorf("nothing is seen of it, or more than it: %d operations in the order %v, %d Polls, %d times again, cuts %v",
						len(r.net.said), r.order(0, -1), r.polls, r.again, r.net.cuts)
				}
			})
		}
	}
}

// TestReplay: the same seed and calls meet the same faults, another seed others, and so does another rank.
func TestReplay(t *testing.T) {
	said := func(text string) string {
		r := play(t, text, &paper{posted: true})
		var b strings.Builder
		for _, op := range r.net.said {
			fmt.Fprint(&b, op.DstOff, "+", len(op.Data), " ")
		}
		return fmt.Sprint(b.String(), r.ends, r.net.cuts)
	}
	const text = "all,duplicate,unordered"
	first := said("seed=7," + text)
	if again := said("seed=7," + text); again != first {
		t.Errorf("seed 7 gives\n%s\nand then\n%s", first, again)
	}
	if said("seed=8,"+text) == first {
		t.Error("seeds 7 and 8 give the same")
	}
	p := plan{seed: 7}
	if p.chance(delays, 0).below(1<<30) == p.chance(delays, 1).below(1<<30) || p.chance(delays, 0).below(1<<30) == p.chance(stalls, 0).below(1<<30) {
		t.Error("two ranks, or two faults, draw the same numbers")
	}
}

// TestKill: from one operation on each to that peer fails, and those to others go on.
func TestKill(t *testing.T) {
	for _, text := range []string{"kill=2", "kill=2,all,seed=3"} {
		k := endings(t, text)
		if k.failed == 0 || k.failed > k.to2 || k.others > 0 {
			t.Errorf("%s: of %d operations to rank 2 %d failed, of others %d", text, k.to2, k.failed, k.others)
		}
	}
}

// killed counts operations to rank 2, those of them that failed, and those to others that did.
type killed struct{ to2, failed, others int }

// endings posts one operation after the other, each in a context of its own, and counts how they end.
func endings(t *testing.T, text string) (k killed) {
	e := open(t, text, &paper{}, nil)
	var done [4]netplugin.Completion
	dead := false
	for i := range 3 * maxLife {
		op := []netplugin.Op{{Kind: netplugin.Signal, Raise: true, Context: int32(i), Peer: int32(i % peers), SigDst: netplugin.Region(1 + i%peers)}}
		n := 0
		for range 1000 {
			if n = e.Post(op); n > 0 {
				break
			}
			e.Poll(nil)
		}
		end := op[0].Err
		for range 1000 {
			if op[0].State != netplugin.Posted {
				break
			}
			if e.Poll(done[:]) > 0 {
				end = done[0].Err
				break
			}
		}
		switch to2 := i%peers == 2; {
		case to2:
			k.to2++
			if end != nil {
				k.failed++
				dead = true
			} else if dead {
				t.Errorf("%s: an operation to a killed rank was done", text)
			}
			if end != nil && !errors.Is(end, netplugin.ErrPeerLost) {
				t.Errorf("%s: %v does not wrap ErrPeerLost", text, end)
			}
		case end != nil:
			k.others++
		}
	}
	return k
}

// TestHarmBySeed: what a text injects happens once, on rank 0 alone, at a place that the seed chooses.
func TestHarmBySeed(t *testing.T) {
	places := map[int]bool{}
	for seed := range 20 {
		r := play(t, fmt.Sprintf("bitflip,again,seed=%d", seed), &paper{})
		at, wrong := -1, 0
		for _, op := range r.net.said {
			if bytes.Count(op.Data, []byte{byte(op.DstOff / 10)}) != len(op.Data) {
				at = int(op.DstOff / 10)
				wrong++
			}
		}
		places[at] = true
		if wrong != 1 {
			t.Errorf("seed %d: %d operations are wrong (want 1)", seed, wrong)
		}
	}
	if len(places) < 3 || places[-1] {
		t.Errorf("20 seeds chose the places %v", places)
	}
	p, err := wrapper{}.Wrap(&paper{}, netplugin.Faults{Text: "lostput"})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := p.Open(netplugin.Config{Rank: 1, Ranks: 2}); err != nil || fmt.Sprintf("%T", e) != "*fault.paper" {
		t.Errorf("rank 1 has a %T, error %v (want the network's own endpoint)", e, err)
	}
}

// hold opens an endpoint that keeps each operation for a while, and posts one to rank 1.
func hold(t *testing.T, net *paper) (netplugin.Endpoint, []netplugin.Op) {
	t.Helper()
	e := open(t, "delay=100", net, nil)
	op := []netplugin.Op{{Kind: netplugin.Put, Peer: 1, Dst: 2, Data: []byte("x"), Raise: true, SigDst: 2}}
	if n := e.Post(op); n != 1 || len(net.said) != 0 {
		t.Fatalf("Post took %d, %d were passed on (want 1, none yet)", n, len(net.said))
	}
	return e, op
}

// TestForgetWaits: a region that a held operation means is forgotten when that has gone, so that its number means nothing
// else meanwhile, and it is none for who posts.
func TestForgetWaits(t *testing.T) {
	net := &paper{}
	e, op := hold(t, net)
	e.Forget(2)
	e.Forget(2)
	e.Forget(3)
	if !slices.Equal(net.forgotten, []netplugin.Region{3}) {
		t.Fatalf("forgotten are %v (want 3 alone: an operation on 2 is held)", net.forgotten)
	}
	signal := []netplugin.Op{{Kind: netplugin.Signal, Peer: 2, Raise: true, SigDst: 1}}
	if e.Forget(0); e.Post(signal) != 1 || signal[0].State == netplugin.Failed {
		t.Errorf("a signal after region 0, which is none, was forgotten: state %d, %v", signal[0].State, signal[0].Err)
	}
	late := slices.Clone(op)
	late[0].Context = 1
	if e.Post(late); late[0].State != netplugin.Failed || !errors.Is(late[0].Err, netplugin.ErrBounds) {
		t.Errorf("an operation on a forgotten region: state %d, %v", late[0].State, late[0].Err)
	}
	for range 2 * maxDelay {
		e.Poll(make([]netplugin.Completion, 1))
	}
	if len(net.said) != 2 || !slices.Equal(net.forgotten, []netplugin.Region{3, 0, 2}) {
		t.Errorf("%d operations were passed on, forgotten are %v (want 2, and region 2 behind them)", len(net.said), net.forgotten)
	}
}

// TestLoseEndsWhatIsHeld: an operation to a lost peer that has not gone ends without going.
func TestLoseEndsWhatIsHeld(t *testing.T) {
	net := &paper{}
	e, op := hold(t, net)
	e.(netplugin.Connector).Lose(1)
	var done [1]netplugin.Completion
	for range 2 { // what was held, and what comes afterwards
		n := 0
		for i := 0; i < 2*maxDelay && n == 0; i++ {
			n = e.Poll(done[:])
		}
		if n != 1 || !errors.Is(done[0].Err, netplugin.ErrPeerLost) || len(net.said) != 0 || !slices.Equal(net.lost, []int{1}) {
			t.Errorf("%d ended, with %v; %d were passed on; the network was told of %v", n, done[0].Err, len(net.said), net.lost)
		}
		e.Post(op)
	}
	e.Close()
	if n := e.Post(op) + e.Poll(done[:]); n != 0 {
		t.Errorf("a closed endpoint took or reported %d operations", n)
	}
}

// TestSaysItsSeed: an endpoint says once what repeats it.
func TestSaysItsSeed(t *testing.T) {
	var b bytes.Buffer
	open(t, "all,seed=77", &paper{}, slog.New(slog.NewTextHandler(&b, nil)))
	if s := b.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "seed=77,reorder=50,") {
		t.Errorf("it says %q", s)
	}
	b.Reset()
	if open(t, "", &paper{}, slog.New(slog.NewTextHandler(&b, nil))); b.Len() > 0 {
		t.Errorf("without faults it says %q", &b)
	}
}

// bare is a network that has neither frames nor links.
type bare struct{ netplugin.Plugin }

func (bare) Open(netplugin.Config) (netplugin.Endpoint, error) {
	return struct{ netplugin.Endpoint }{&paper{}}, nil
}

// TestDuplicateRefused: where a signal would be added twice the fault is refused when the network opens.
func TestDuplicateRefused(t *testing.T) {
	p, err := wrapper{}.Wrap(bare{&paper{}}, netplugin.Faults{Text: "duplicate=5"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = p.Open(netplugin.Config{Rank: 3, Ranks: 4}); err == nil || !strings.Contains(err.Error(), "open fault+paper on rank 3: duplicate=5") || !strings.Contains(err.Error(), "tcp") {
		t.Errorf("error %v", err)
	}
}
