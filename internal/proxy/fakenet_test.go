// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	"github.com/doorbell-net/doorbell/netplugin"
)

// lane is what a network keeps in order: one context and peer.
type lane struct{ ctx, peer int32 }

// seenOp is an operation as the network saw it.
type seenOp struct {
	Kind           netplugin.Kind
	Strong, Raise  bool
	Dst, SigDst    netplugin.Region
	DstOff, SigOff uint64
	SigAdd         uint64
	data           payload
}

// payload prints short.
type payload string

func (p payload) String() string {
	if len(p) > 32 {
		return fmt.Sprintf("%d bytes %x...", len(p), string(p[:32]))
	}
	return fmt.Sprintf("%x", string(p))
}

func seen(op *netplugin.Op) seenOp {
	s := seenOp{Kind: op.Kind, Strong: op.Strong, Raise: op.Raise, Dst: op.Dst, DstOff: op.DstOff, data: payload(op.Data)}
	if op.Raise {
		s.SigDst, s.SigOff, s.SigAdd = op.SigDst, op.SigOff, op.SigAdd
	}
	return s
}

// fakeNet is a network that does what it may: it answers "again", completes later and in any order, and fails the
// operation it is told to.
type fakeNet struct {
	rng      *rand.Rand
	again    float64     // how likely it takes no more
	late     float64     // how likely an operation is left Posted
	refuse   map[int]int // how often it answers "again" before it takes operation n, counted from 0 over all
	failAt   int         // the operation that fails, counted from 0 over all; -1: none
	failLate bool        // it is reported by Poll
	failErr  error
	// unordered: it keeps no order, so that a signal must not come while what it covers is on its way.
	unordered bool

	posted int
	log    map[lane][]seenOp // in the order in which it took them
	flying []flight
	ready  []netplugin.Completion // for Poll
	most   int                    // most that were on their way at once
	broken []string               // what the owner did wrong
}

type flight struct {
	lane  lane
	token uint64
	data  []byte // the caller's
	was   []byte // what it was when it was posted
	err   error
}

func newFakeNet(rng *rand.Rand) *fakeNet {
	return &fakeNet{rng: rng, failAt: -1, failErr: errNet, log: map[lane][]seenOp{}}
}

func (f *fakeNet) Export([]byte, bool) ([]byte, error) { return nil, nil }
func (f *fakeNet) Withdraw([]byte)                     {}

func (f *fakeNet) Import(int, netplugin.Key) (netplugin.Region, error) {
	return 0, fmt.Errorf("not used")
}
func (f *fakeNet) Forget(netplugin.Region) {}
func (f *fakeNet) Close() error            { return nil }

func (f *fakeNet) Post(ops []netplugin.Op) int {
	if len(ops) == 0 {
		f.broken = append(f.broken, "posted nothing")
	}
	for i := range ops {
		op := &ops[i]
		if f.again > 0 && f.rng.Float64() < f.again {
			return i
		}
		n := f.posted
		if f.refuse[n] > 0 {
			f.refuse[n]--
			return i
		}
		f.posted++
		if n == f.failAt && !f.failLate {
			op.State, op.Err = netplugin.Failed, f.failErr
			return i + 1
		}
		l := lane{op.Context, op.Peer}
		f.log[l] = append(f.log[l], seen(op))
		f.covered(op, l)
		op.State = netplugin.Done
		if n == f.failAt || f.late > 0 && f.rng.Float64() < f.late {
			op.State = netplugin.Posted
			fl := flight{lane: l, token: op.Token, data: op.Data, was: bytes.Clone(op.Data)}
			if n == f.failAt {
				fl.err = f.failErr
			}
			f.flying = append(f.flying, fl)
			f.count()
		}
	}
	return len(ops)
}

// covered looks whether all that an operation's signal covers is complete.
func (f *fakeNet) covered(op *netplugin.Op, l lane) {
	if !f.unordered || !op.Raise {
		return
	}
	for _, fl := range f.flying {
		if fl.lane == l && (op.Strong || fl.token == op.Token) {
			f.broken = append(f.broken, fmt.Sprintf("a signal (strong: %v) was posted while what it covers was on its way", op.Strong))
		}
	}
}

// count notes how many operations are on their way; the pieces of one count as one.
func (f *fakeNet) count() {
	tokens := map[uint64]bool{}
	for _, fl := range f.flying {
		tokens[fl.token] = true
	}
	f.most = max(f.most, len(tokens))
}

// land ends n operations on their way, any of them.
func (f *fakeNet) land(n int) {
	for ; n > 0 && len(f.flying) > 0; n-- {
		i := f.rng.IntN(len(f.flying))
		fl := f.flying[i]
		if !bytes.Equal(fl.data, fl.was) {
			f.broken = append(f.broken, fmt.Sprintf("a payload changed before its operation ended: %x, was %x", fl.data, fl.was))
		}
		f.ready = append(f.ready, netplugin.Completion{Token: fl.token, Err: fl.err})
		f.flying = append(f.flying[:i], f.flying[i+1:]...)
	}
}

func (f *fakeNet) Poll(done []netplugin.Completion) int {
	n := copy(done, f.ready)
	f.ready = f.ready[n:]
	return n
}
