// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/internal/testenv"
	"github.com/doorbell-net/doorbell/netplugin"
)

// TestSpan leaves one operation unfinished while later ones end at once: span of them are taken and counted, then no
// more, and after its end all the rest, wherever in the ring of ended ones it stood.
func TestSpan(t *testing.T) {
	for _, before := range []int{0, 1, 63, 64, span - 1, span} {
		f := newFakeRig(t, shape{contexts: 1, peers: 1, depth: 64, signals: 1, counters: 1, maxBytes: 8}, testenv.Random(t), 0)
		d := f.signal()
		d.Flags |= abi.FlagCounter
		put := 0
		// push puts and moves until there is no room any more, or n were put.
		push := func(n int) {
			for stuck := 0; stuck < 10 && (put < n || f.taken(0, 0) < put); stuck++ {
				for put < n && f.put(0, 0, d, nil, true) {
					put, stuck = put+1, 0
				}
				f.owner.Pass()
			}
		}
		push(before)
		f.net.late = 1
		push(before + 1)
		f.net.late = 0
		push(before + 3*span)
		if got := f.taken(0, 0); got != before+span {
			t.Fatalf("%d before the one that does not end: %d were taken, want %d", before, got, before+span)
		}
		if got := f.completed(0, 0); got != before {
			t.Fatalf("%d before: completed is %d", before, got)
		}
		if got := f.counter(0, 0); got != uint64(before+span-1) {
			t.Fatalf("%d before: %d were counted, want %d", before, got, before+span-1)
		}
		f.net.land(1)
		push(before + 3*span)
		if got, want := f.completed(0, 0), before+3*span; got != want || f.counter(0, 0) != uint64(want) {
			t.Fatalf("%d before: %d completed and %d counted at the end, want %d", before, got, f.counter(0, 0), want)
		}
		// Two that do not end, on a later lap of the ring: the end of the first is not that of the second.
		at := put
		f.net.late = 1
		push(at + 1)
		f.net.late = 0
		push(at + 10)
		f.net.late = 1
		push(at + 11)
		f.net.late = 0
		push(at + 20)
		first := f.net.flying[0]
		f.net.flying = f.net.flying[1:]
		f.net.ready = append(f.net.ready, netplugin.Completion{Token: first.token})
		for range 10 {
			f.owner.Pass()
		}
		if got := f.completed(0, 0); got != at+10 {
			t.Fatalf("%d before: completed is %d, want %d: number %d has not ended", before, got, at+10, at+10)
		}
		f.net.land(1)
		f.until(t, "all have ended", func() bool { return f.completed(0, 0) == at+20 })
	}
}

// TestLateProducers has descriptors come 0.9 s after their tickets, again and again: none of them is taken for dead,
// since the time starts anew with each.
func TestLateProducers(t *testing.T) {
	f := newFakeRig(t, small, testenv.Random(t), 0)
	q := f.queue(0, 0)
	for round := range 5 {
		ticket := q.Prod.Raw().Ticket
		gpu.Store(gpu.PtrTo(&q.Prod.Raw().Ticket), ticket+1, gpu.Relaxed, gpu.ScopeSys)
		for range 45 {
			f.owner.Pass()
			f.owner.audited = sys.Nanotime() - auditGap
			f.owner.Audit()
		}
		f.write(q, ticket, f.signal(), nil)
		f.until(t, "the descriptor is taken", func() bool { return f.completed(0, 0) == round+1 || f.status(0, 0) != abi.OK })
		if s := f.status(0, 0); s != abi.OK {
			t.Fatalf("round %d: a producer that was late is taken for dead: %v", round, s)
		}
	}
}

// TestSweepGoesRound has a queue whose hints are all lost and which always has more than the sweep's share of a pass,
// while passes come rarely: what others have without a hint is found too.
func TestSweepGoesRound(t *testing.T) {
	f := newFakeRig(t, shape{contexts: 20, peers: 1, depth: 64, signals: 1, maxBytes: 8}, testenv.Random(t), 0)
	for q := 1; q < 20; q++ {
		f.put(q, 0, f.signal(), nil, false)
	}
	left := 19
	for passes := 0; left > 0; passes++ {
		if passes == 1000 {
			t.Fatalf("%d of 19 queues were not looked into in %d passes", left, passes)
		}
		for f.put(0, 0, f.signal(), nil, false) {
		}
		f.owner.swept = 0 // the last pass was long ago
		f.owner.Pass()
		left = 0
		for q := 1; q < 20; q++ {
			left += 1 - f.taken(q, 0)
		}
	}
}
