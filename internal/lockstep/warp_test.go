// SPDX-License-Identifier: Apache-2.0

package lockstep

import (
	"errors"
	"strings"
	"sync"
	"testing"
)

// warp runs f in each lane, and returns what each panicked with.
func warp(w *Warp, f func(lane int32)) (left [Lanes]any) {
	w.Reset(7)
	var wg sync.WaitGroup
	for lane := range int32(Lanes) {
		wg.Go(func() {
			defer func() {
				left[lane] = recover()
				w.Leave(lane)
			}()
			f(lane)
		})
	}
	wg.Wait()
	return left
}

// TestExchange: values go where they are asked for, launch after launch.
func TestExchange(t *testing.T) {
	var w Warp
	for range 20 {
		left := warp(&w, func(lane int32) {
			for i := range uint64(20) {
				if got := w.Shuffle(lane, "a shuffle", uint64(lane)<<8|i, (lane+3)%Lanes); got != uint64((lane+3)%Lanes)<<8|i {
					panic("a value of another lane or round")
				}
				if w.Ballot(lane, lane%2 == 1) != 0xaaaaaaaa {
					panic("a vote of another lane")
				}
				if w.Match(lane, uint64(lane/16)<<40|i) != 0xffff<<(lane/16*16) || w.Elect(lane) != (lane == 0) {
					panic("a match of another lane, or not the first is elected")
				}
				w.Sync(lane)
			}
		})
		if left != [Lanes]any{} {
			t.Fatalf("the lanes left with %v", left)
		}
	}
}

// TestOrdered: what is plain before Sync is seen after it, and one lane alone goes through; under -race the detector agrees.
func TestOrdered(t *testing.T) {
	var w Warp
	var cell, crossed int
	left := warp(&w, func(lane int32) {
		for i := range 50 {
			if int(lane) == i%Lanes {
				cell = i
			}
			w.Sync(lane)
			if cell != i {
				panic("a stale word")
			}
			w.Through(lane, "a barrier", func() { crossed++ })
			if crossed != i+1 {
				panic("not one lane went through")
			}
		}
	})
	if left != [Lanes]any{} {
		t.Fatalf("the lanes left with %v", left)
	}
}

// TestDivergenceEndsAllThatWait: each lane that waits learns where all are.
func TestDivergenceEndsAllThatWait(t *testing.T) {
	var w Warp
	left := warp(&w, func(lane int32) {
		switch {
		case lane < 4 || lane == 7:
			w.Sync(lane)
		case lane < 20:
			w.Ballot(lane, true)
		}
	})
	for lane, v := range left {
		if lane >= 20 {
			if v != nil {
				t.Errorf("lane %d, which had ended, left with %v", lane, v)
			}
			continue
		}
		d, ok := v.(*Divergence)
		if !ok {
			t.Fatalf("lane %d left with %v, want a Divergence", lane, v)
		}
		for _, want := range []string{"lanes 0-3,7 wait in SyncWarp", "lanes 4-6,8-19 wait in a vote", "lanes 20-31 have ended"} {
			if !strings.Contains(d.Error(), want) {
				t.Errorf("%v does not say %q", d, want)
			}
		}
	}
}

// TestEndsForACause: End ends each wait, of lanes that come later too; so does what goes wrong on the way through.
func TestEndsForACause(t *testing.T) {
	cause := errors.New("a cause")
	for name, f := range map[string]func(w *Warp, lane int32){
		"end": func(w *Warp, lane int32) {
			if lane == 9 {
				w.End(cause)
			}
			w.Sync(lane)
		},
		"through": func(w *Warp, lane int32) { w.Through(lane, "a barrier", func() { panic(cause) }) },
	} {
		var w Warp
		for lane, v := range warp(&w, func(lane int32) { f(&w, lane) }) {
			if v != any(cause) {
				t.Errorf("%s: lane %d left with %v", name, lane, v)
			}
		}
		if left := warp(&w, func(lane int32) { w.Sync(lane) }); left != [Lanes]any{} {
			t.Errorf("%s: the next launch left with %v", name, left)
		}
	}
}
