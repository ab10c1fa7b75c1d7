// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"testing"
	"time"
)

// said returns the kinds of message that m sends now.
func said(m *member) (kinds []uint8) {
	send, _ := m.take()
	for _, o := range send {
		kinds = append(kinds, o.kind)
	}
	return kinds
}

func has(kinds []uint8, k uint8) bool {
	for _, x := range kinds {
		if x == k {
			return true
		}
	}
	return false
}

// The coordinator has decided, told one rank, and died; that rank is cut off. The others cannot know, but what they
// decide has to be the same.
func TestBallotKeepsWhatWasAccepted(t *testing.T) {
	w := scene(7)
	w.run(2 * time.Second)
	w.kill(6, true, yes)
	for len(w.log[0]) == 0 {
		w.run(w.due() + 1)
	}
	w.kill(0, true, func(to int) bool { return to == 5 })
	for r := range 5 {
		w.cutWay(5, r, 8*time.Second)
	}
	w.run(time.Minute)
	if len(w.log[5]) != 1 || len(w.log[1]) < 2 {
		t.Errorf("not the case meant: %v, %v\n%s", w.log[5], w.log[1], w)
	}
	if err := w.agree(); err != nil {
		t.Errorf("%v\n%s", err, w)
	}
}

// Who has promised a higher ballot takes no verdict of a lower one, and makes no promise for one.
func TestBallotPromiseBinds(t *testing.T) {
	m := newMember(2, 5, simLimit, simPeriod)
	m.cut(0)
	said(m)
	high, low := ballot(1<<ballotRankBits).next(1), ballot(0).next(0)
	m.receive(1, message{kind: msgPrepare, ballot: high})
	if !has(said(m), msgPromise) {
		t.Fatal("no promise")
	}
	m.receive(0, message{kind: msgPrepare, ballot: low})
	m.receive(0, message{kind: msgAccept, ballot: low, verdict: verdict{set: setOf(5, 0, 1, 2), left: setOf(5)}})
	if k := said(m); has(k, msgPromise) || has(k, msgAccepted) {
		t.Errorf("answered a lower ballot: %v", k)
	}
	m.receive(1, message{kind: msgAccept, ballot: high, verdict: verdict{set: setOf(5, 1, 2), left: setOf(5)}})
	if !has(said(m), msgAccepted) {
		t.Error("did not accept its own ballot")
	}
}

// Without a majority, all that are left have to have seen the ends of all others before they promise.
func TestBallotOfSurvivors(t *testing.T) {
	m := newMember(2, 4, simLimit, simPeriod)
	m.ended(0)
	m.ended(1)
	if k := said(m); !has(k, msgPrepare) {
		t.Fatalf("no ballot: %v", k)
	}
	b := m.try.ballot
	m.receive(3, message{kind: msgPromise, ballot: b, row: row{suspect: setOf(4), ended: setOf(4, 0), left: setOf(4)}})
	if k := said(m); has(k, msgAccept) {
		t.Fatalf("proposed with a promise made before rank 1's end was seen: %v", k)
	}
	m.receive(3, message{kind: msgRow, row: row{suspect: setOf(4), ended: setOf(4, 0, 1), left: setOf(4)}})
	if k := said(m); !has(k, msgPrepare) || m.try.ballot <= b {
		t.Fatalf("did not ask again: %v", k)
	}
	m.receive(3, message{kind: msgPromise, ballot: m.try.ballot, row: row{suspect: setOf(4), ended: setOf(4, 0, 1), left: setOf(4)}})
	if k := said(m); !has(k, msgAccept) {
		t.Fatalf("did not propose: %v", k)
	}
	m.receive(3, message{kind: msgAccepted, ballot: m.try.ballot})
	if m.epoch != 1 || !m.set.equal(setOf(4, 2, 3)) {
		t.Errorf("epoch %d, set %v", m.epoch, m.set.list())
	}
}
