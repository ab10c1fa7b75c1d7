// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// All that are left go through the same epochs; each is told before the losses in it, and to who registers late too.
func TestEpochs(t *testing.T) {
	both(t, 4, func(t *testing.T, gs []Group) {
		left := []Group{gs[1], gs[2]}
		told := make(chan string, 32)
		for _, g := range left {
			g.OnEpoch(func(e uint32, lost []int) { told <- fmt.Sprint(g.Rank(), ": epoch ", e, " lost ", lost) })
			g.OnLost(func(r int, _ error) { told <- fmt.Sprint(g.Rank(), ": lost ", r) })
		}
		next := func(n int) (s []string) {
			for range n {
				s = append(s, <-told)
			}
			slices.SortStableFunc(s, func(a, b string) int { return int(a[0]) - int(b[0]) })
			return s
		}
		for i, victim := range []int{3, 0} {
			Kill(gs[victim])
			var want []string
			for _, g := range left {
				want = append(want, fmt.Sprintf("%d: epoch %d lost [%d]", g.Rank(), i+1, victim), fmt.Sprintf("%d: lost %d", g.Rank(), victim))
			}
			if got := next(4); !slices.Equal(got, want) {
				t.Fatalf("told %q, want %q", got, want)
			}
		}
		for _, g := range left {
			g.OnEpoch(func(e uint32, lost []int) { told <- fmt.Sprint(g.Rank(), ": late ", e, " ", lost) })
			if g.Epoch() != 2 {
				t.Errorf("rank %d: epoch %d", g.Rank(), g.Epoch())
			}
		}
		if got, want := next(4), []string{"1: late 1 [3]", "1: late 2 [0]", "2: late 1 [3]", "2: late 2 [0]"}; !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
	})
}

// A rank that breaks the protocol lives on; it is told that it is out.
func TestCutOffCause(t *testing.T) {
	checkLeaks(t)
	gs := makers["tcp"](t, 3)
	defer closeGroups(gs)
	lost := make(chan error, 4)
	gs[2].OnLost(func(_ int, cause error) { lost <- cause })
	for _, r := range []int{0, 1} {
		gs[2].(*group).tr.(*mesh).link(r).conn.Write([]byte("no frame, but as long as the header of one"))
	}
	for range 2 {
		if cause := <-lost; !errors.Is(cause, ErrCutOff) {
			t.Errorf("lost: %v", cause)
		}
	}
	begun := make(chan []int, 1)
	gs[0].OnEpoch(func(_ uint32, lost []int) { begun <- lost })
	if l := <-begun; !slices.Equal(l, []int{2}) || gs[2].Epoch() != 0 {
		t.Errorf("rank 0 lost %v; epoch of rank 2 is %d", l, gs[2].Epoch())
	}
}

// A rank whose kernel does not tell makes the number of machines unknown.
func TestMachines(t *testing.T) {
	g := newGroup(0, 3, testBound, quiet())
	for i, id := range []string{"a", "b", "a"} {
		g.peers[i].bootID = id
	}
	if n := Machines(g); n != 2 {
		t.Errorf("%d machines", n)
	}
	if g.peers[1].bootID = ""; Machines(g) != 0 {
		t.Errorf("%d machines, one of them not known", Machines(g))
	}
	gs := makers["local"](t, 3)
	defer closeGroups(gs)
	if n := Machines(gs[2]); n != 1 {
		t.Errorf("%d machines of one process", n)
	}
}
