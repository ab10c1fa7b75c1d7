// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/doorbell-net/doorbell/internal/testenv"
	"github.com/doorbell-net/doorbell/netplugin"
)

const (
	tornOps  = 120
	tornMost = 3 * copyBelow // bytes of an operation
	lostCtx  = 3             // puts of this context go to a region that is gone
)

// torn is two ranks whose sockets break at any time, and who learn of it and meet again in any order. Rank 1 dials.
type torn struct {
	*pair
	rng  *rand.Rand
	ops  []tornOp // by token
	ends map[uint64]error
	sum  [2]uint64           // of the signals to come to a rank
	next [2]int              // slot of a rank's next operation
	gone [2]netplugin.Region // of the other, withdrawn
	late []*attach           // of rank 0: greeted, and not handed over
}

type tornOp struct {
	rank, at   int
	get        bool
	data, want []byte
	refused    bool
	checked    bool
}

// TestTorn: whatever breaks when, each operation ends once and as it is to, and has its effect once. Nothing depends on
// time: a seed replays.
func TestTorn(t *testing.T) {
	rng := testenv.Random(t)
	for range 12 {
		p := &torn{pair: newPairByHand(t, 2*tornOps*tornMost), rng: rng, ends: map[uint64]error{}}
		p.withdraw()
		p.breaking()
		p.calm()
		for r := range p.ep {
			if got := p.signal(r, 0); got != p.sum[r] {
				t.Errorf("rank %d: signal is %d, want %d", r, got, p.sum[r])
			}
		}
		for token, op := range p.ops {
			if got := p.win[1-op.rank][op.at:][:len(op.want)]; !op.get && !op.refused && !bytes.Equal(got, op.want) {
				t.Errorf("operation %d of rank %d: its %d bytes are wrong", token, op.rank, len(got))
			}
		}
		if t.Failed() {
			return
		}
	}
}

// withdraw has each rank know a region of the other that is gone.
func (p *torn) withdraw() {
	for r, e := range p.ep {
		key, _ := p.ep[1-r].Export(make([]byte, tornMost), false)
		var err error
		if p.gone[r], err = e.Import(1-r, netplugin.Key{Bytes: key, Size: tornMost}); err != nil {
			p.t.Fatal(err)
		}
		p.ep[1-r].Withdraw(key)
	}
}

// breaking posts all operations and breaks sockets between.
func (p *torn) breaking() {
	for steps := 0; p.next[0] < tornOps || p.next[1] < tornOps; steps++ {
		r := p.rng.IntN(2)
		l := p.ep[r].all[0]
		switch n := p.rng.IntN(20); {
		case n < 6 && p.next[r] < tornOps:
			p.some(r)
		case n < 15:
			p.pass(r)
		case n == 15 && l.fd >= 0:
			l.lose(errTorn)
		case n == 16 && l.fd >= 0:
			l.read() // by the old socket, though there is a new one
		case n == 17 && len(p.late) > 0:
			p.handLate(p.rng.IntN(len(p.late)))
		case n > 17 && p.ep[1].all[0].fd < 0:
			p.dial()
		}
	}
}

// calm breaks nothing any more, until all has ended.
func (p *torn) calm() {
	for passes := 0; len(p.ends) < len(p.ops); passes++ {
		if passes > 100_000 {
			p.t.Fatalf("%d operations of %d ended", len(p.ends), len(p.ops))
		}
		for len(p.late) > 0 {
			p.handLate(0)
		}
		p.pass(passes % 2)
		if p.ep[1].all[0].fd < 0 {
			p.dial()
		}
	}
}

// dial has rank 1 greet rank 0. It has its socket at once, as it has given up any other; rank 0 may have more that wait.
func (p *torn) dial() {
	if p.ep[1].all[0].fresh.Load() != nil {
		return
	}
	a := p.greet([]int{little, much}[p.rng.IntN(2)])
	p.hand(1, a[1])
	p.late = append(p.late, a[0])
}

func (p *torn) handLate(i int) {
	p.hand(0, p.late[i])
	p.late = append(p.late[:i], p.late[i+1:]...)
}

// some posts an operation that a rank has not posted yet.
func (p *torn) some(r int) {
	op := tornOp{rank: r, data: make([]byte, p.rng.IntN(tornMost)>>p.rng.IntN(8))}
	slot := p.next[r]
	var post netplugin.Op
	if op.get = p.rng.IntN(5) == 0; op.get {
		op.at = (tornOps + slot) * tornMost // the half that nobody writes
		op.want = p.win[1-r][op.at:][:len(op.data)]
		p.fill(op.want)
		post = netplugin.Op{Kind: netplugin.Get, Peer: int32(1 - r), Dst: p.to[r], DstOff: uint64(op.at), Data: op.data}
	} else {
		op.at = slot * tornMost
		p.fill(op.data)
		op.want = bytes.Clone(op.data)
		post = p.put(r, op.at, op.data, 0, uint64(1+p.rng.IntN(100)))
	}
	post.Context, post.Token = int32(p.rng.IntN(lostCtx)), uint64(len(p.ops))
	if !op.get && len(op.data) > 0 && p.rng.IntN(8) == 0 {
		post.Dst, post.DstOff, post.Context = p.gone[r], 0, lostCtx
		op.refused = true
	}
	ops := []netplugin.Op{post}
	if p.ep[r].Post(ops) == 0 {
		return // no room
	}
	if ops[0].State != netplugin.Posted {
		p.t.Fatal(ops[0].Err)
	}
	p.next[r]++
	p.ops = append(p.ops, op)
	if !op.get && !op.refused {
		p.sum[1-r] += post.SigAdd
	}
}

func (p *torn) fill(b []byte) {
	for i := range b {
		b[i] = byte(p.rng.Uint32())
	}
}

// pass polls a rank. The memory of what ended is its owner's again, who writes something else there.
func (p *torn) pass(r int) {
	p.t.Helper()
	p.poll(r, p.ends)
	for token := range p.ends {
		op := &p.ops[token]
		if op.checked {
			continue
		}
		op.checked = true
		p.asExpected(token, p.ends[token], op.refused)
		if op.get && !bytes.Equal(op.data, op.want) {
			p.t.Fatalf("get %d of %d bytes is wrong", token, len(op.data))
		}
		clear(op.data)
	}
}
