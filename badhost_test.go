// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
)

// says fails the test unless the error is there and has each text in it.
func says(t testing.TB, err error, what string, texts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: the error does not say %q: %v", what, s, err)
		}
	}
}

// TestBadOptions asks for communicators that cannot be.
func TestBadOptions(t *testing.T) {
	for _, c := range []struct {
		n    int
		o    doorbell.Options
		says []string
	}{
		{0, doorbell.Options{}, []string{"0 ranks", "1 to 4096"}},
		{-3, doorbell.Options{}, []string{"-3 ranks", "1 to 4096"}},
		{4097, doorbell.Options{}, []string{"4097 ranks", "1 to 4096"}},
		{4, doorbell.Options{RanksPerNode: 3}, []string{"3 ranks per node", "divisor of the 4"}},
		{4, doorbell.Options{RanksPerNode: 8}, []string{"8 ranks per node", "divisor of the 4"}},
		{4, doorbell.Options{RanksPerNode: -1}, []string{"-1 ranks per node"}},
		{4, doorbell.Options{LocalGPUs: 5}, []string{"4 ranks", "dealt to 5 GPUs", "1 to 4"}},
		{4, doorbell.Options{LocalGPUs: -1}, []string{"dealt to -1 GPUs"}},
		{2, doorbell.Options{Timeout: -time.Second}, []string{"timeout -1s", "more than 0"}},
		{2, doorbell.Options{Net: "carrier-pigeon"}, []string{`"carrier-pigeon"`, "shm"}},
		{2, doorbell.Options{Net: "bad+shm"}, []string{`"bad"`, "fault"}},
		{2, doorbell.Options{Backend: "x"}, []string{`backend "x"`, "proxy"}},
		{2, doorbell.Options{Backend: "gdaki", Net: "neither"}, []string{"gdaki", "keeps no order"}},
		{2, doorbell.Options{Device: "abacus"}, []string{`device "abacus"`, "soft"}},
		{2, doorbell.Options{Progress: "never"}, []string{`progress "never"`, "thread", "assisted"}},
		{2, doorbell.Options{Net: "shm", Faults: "all"}, []string{`faults "all" on network shm`, "fault+shm"}},
		{2, doorbell.Options{Net: "fault+shm", Faults: "rain"}, []string{`faults "rain"`, "seed=N", "reorder[=0..100]"}},
		{2, doorbell.Options{Net: "fault+shm", Faults: "duplicate"}, []string{"duplicate=20", "tcp"}},
		{2, doorbell.Options{Inject: "rain"}, []string{`inject "rain"`, "bitflip", "lostput", "doublesignal"}},
	} {
		cs, err := doorbell.Local(c.n, c.o)
		if cs != nil {
			t.Errorf("Local(%d, %+v) made ranks", c.n, c.o)
		}
		says(t, err, strings.Join(c.says, ", "), c.says...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testBound)
	defer cancel()
	t.Setenv("DOORBELL_RANK", "")
	t.Setenv("DOORBELL_WORLD_SIZE", "")
	_, err := doorbell.Open(ctx, doorbell.Options{})
	says(t, err, "Open without a job", "DOORBELL_RANK", "DOORBELL_WORLD_SIZE", "doorbell run")
	for _, rank := range []int{-1, 2, 5} {
		_, err = doorbell.Open(ctx, doorbell.Options{Rank: rank, Size: 2, Addr: "unix:@nobody"})
		says(t, err, "rank out of range", "of 2 ranks", "0 to 1")
	}
	for _, o := range []doorbell.Options{{Size: 2, LocalRank: -2, Addr: "unix:@nobody"}, {Size: 2, LocalSize: -1, Addr: "unix:@nobody"}} {
		_, err = doorbell.Open(ctx, o)
		says(t, err, "local rank", "local rank", "accepted")
	}
	_, err = doorbell.Open(ctx, doorbell.Options{Rank: 0, Size: 6, RanksPerNode: 4, Addr: "unix:@nobody"})
	says(t, err, "ranks per node", "4 ranks per node", "divisor of the 6")
	t.Setenv("DOORBELL_RANKS_PER_NODE", "0")
	_, err = doorbell.Local(2)
	says(t, err, "environment", "DOORBELL_RANKS_PER_NODE", `"0"`)
}

// TestBadNeeds asks for device communicators that cannot be, on all ranks and on one alone. Each rank gets an error at
// once, and the next, good one works.
func TestBadNeeds(t *testing.T) {
	bad := []struct {
		n    doorbell.Needs
		says []string
	}{
		{doorbell.Needs{Contexts: 1025}, []string{"1025 contexts", "1 to 1024"}},
		{doorbell.Needs{Contexts: -1}, []string{"-1 contexts", "1 to 1024"}},
		{doorbell.Needs{Signals: 1<<20 + 1}, []string{"1048577 signals", "0 to 1048576"}},
		{doorbell.Needs{Signals: -1}, []string{"-1 signals"}},
		{doorbell.Needs{Counters: 1<<20 + 1}, []string{"1048577 counters", "0 to 1048576"}},
		{doorbell.Needs{Counters: -7}, []string{"-7 counters"}},
		{doorbell.Needs{Barriers: 4097}, []string{"4097 barriers", "0 to 4096"}},
		{doorbell.Needs{Barriers: -1}, []string{"-1 barriers"}},
		{doorbell.Needs{QueueDepth: 1}, []string{"1 queue depth", "2 to 65536"}},
		{doorbell.Needs{QueueDepth: 1 << 17}, []string{"131072 queue depth", "2 to 65536"}},
		{doorbell.Needs{QueueDepth: 3}, []string{"queue depth 3", "power of two"}},
		{doorbell.Needs{QueueDepth: 1000}, []string{"queue depth 1000", "power of two"}},
		{doorbell.Needs{SmallPut: 7}, []string{"7 small put", "8 to 256"}},
		{doorbell.Needs{SmallPut: 257}, []string{"257 small put", "8 to 256"}},
		{doorbell.Needs{Sharing: 3}, []string{"sharing 3", "OneBlock (2)"}},
		{doorbell.Needs{Resources: []doorbell.Resource{{Signals: 1}}}, []string{`resource ""`, "a name"}},
		{doorbell.Needs{Resources: []doorbell.Resource{{Name: "x", Counters: -1}}}, []string{`resource "x"`, "-1 counters"}},
		{doorbell.Needs{Signals: 1 << 19, Resources: []doorbell.Resource{{Name: "x", Signals: 1<<19 + 1}}}, []string{"1048577 signals", "0 to 1048576"}},
		{doorbell.Needs{Teams: []doorbell.TeamNeeds{{Ranks: 2, Stride: 1}}}, []string{"teams of 2 ranks 1 apart", "the world's 3 ranks", "cannot"}},
		{doorbell.Needs{Teams: []doorbell.TeamNeeds{{Ranks: 3, Stride: 0}}}, []string{"teams of 3 ranks 0 apart"}},
		{doorbell.Needs{TrafficClass: 8}, []string{"traffic class 8", "this communicator's is 0", "cannot"}},
		// Each is accepted by itself; together they are more than there is.
		{doorbell.Needs{Contexts: 1024, Signals: 1 << 20, Counters: 1 << 20}, []string{"need", "have", "out of memory"}},
	}
	each(t, local(t, 3, doorbell.Options{}), func(r *rank) {
		for _, b := range bad {
			dc, err := r.DevComm(r.ctx, b.n)
			says(r, err, "needs of all", append(b.says, "rank ")...)
			one := doorbell.Needs{}
			if r.Rank() == 1 {
				one = b.n
			}
			if dc != nil || err == nil {
				r.fail("%+v were granted", b.n)
			}
			_, err = r.DevComm(r.ctx, one)
			says(r, err, "needs of rank 1", append(b.says, "rank 1")...)
		}
		for _, differ := range []doorbell.Needs{{Signals: 2 + r.Rank()}, {Contexts: 1 + r.Rank()}, {Rail: r.Rank() == 2}, {QueueDepth: 2 << r.Rank()},
			{Resources: []doorbell.Resource{{Name: "x", Signals: 1 + r.Rank()}}}, {WeakOnly: r.Rank() == 1}} {
			_, err := r.DevComm(r.ctx, differ)
			says(r, err, "needs that differ", "must agree", "rank ")
		}
		r.drop(r.devComm(doorbell.Needs{Signals: 1}))
	})
}

// TestBadRegister registers what cannot be a window; what fails on one rank fails on all, with its reason, and the next
// window works.
func TestBadRegister(t *testing.T) {
	other := local(t, 1, doorbell.Options{})[0]
	theirs, err := other.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	each(t, local(t, 3, doorbell.Options{}), func(r *rank) {
		good := r.alloc(64)
		freed := r.alloc(64)
		part, err := freed.Slice(8, 8)
		r.must(err)
		r.must(freed.Free())
		for _, bad := range []struct {
			b    *doorbell.Buffer
			says string
		}{{nil, "no buffer"}, {freed, "closed"}, {part, "closed"}, {theirs, "communicator"}} {
			_, err := r.Register(r.ctx, bad.b)
			says(r, err, "on all ranks", "register", bad.says, "rank ")
			b := good
			if r.Rank() == 2 {
				b = bad.b
			}
			w, err := r.Register(r.ctx, b)
			says(r, err, "on rank 2 alone", "register", bad.says, "rank 2")
			if w != nil {
				r.fail("a window was made")
			}
		}
		w, err := r.Register(r.ctx, good)
		r.must(err)
		says(r, good.Free(), "free under a window", "1 windows", "rank ")
		r.drop(w)
		r.must(good.Free())
		r.must(good.Free())
	})
}

// TestBadRegisterSignals asks for windows of signals that cannot be, on all ranks and on one alone: all get its reason.
func TestBadRegisterSignals(t *testing.T) {
	each(t, local(t, 3, doorbell.Options{}), func(r *rank) {
		for _, bad := range []int{0, -1, 1<<28 + 1} {
			says := func(w *doorbell.SignalWindow, err error, where string) {
				says(r, err, fmt.Sprint(bad, where), "register signals", fmt.Sprintf("%d signals", bad), "1 to ", "rank ")
				if w != nil {
					r.fail("a window was made")
				}
			}
			w, err := r.RegisterSignals(r.ctx, bad)
			says(w, err, " on all ranks")
			n := 1
			if r.Rank() == 2 {
				n = bad
			}
			w, err = r.RegisterSignals(r.ctx, n)
			says(w, err, " on rank 2 alone")
		}
		r.drop(r.signalWindow(3))
	})
}

// TestBadMemory asks for memory that cannot be.
func TestBadMemory(t *testing.T) {
	c := local(t, 1, doorbell.Options{})[0]
	for _, n := range []int{0, -1, -1 << 40} {
		_, err := c.Alloc(n)
		says(t, err, "alloc", "rank 0", "at least 1")
	}
	_, err := c.Alloc(1 << 50)
	says(t, err, "alloc of a petabyte", "need 1125899906842624 bytes", "have ")
	if !errors.Is(err, doorbell.ErrOutOfMemory) {
		t.Errorf("is not ErrOutOfMemory: %v", err)
	}
	b, err := c.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range [][2]int{{-1, 5}, {0, 0}, {0, 101}, {100, 1}, {1 << 62, 1 << 62}, {5, -1}, {101, -1}} {
		_, err := b.Slice(s[0], s[1])
		says(t, err, "slice", "rank 0", "has 100")
	}
	s, err := b.Slice(10, 90)
	if err != nil || s.Len() != 90 || len(s.Bytes()) != 90 || s.Ptr().Addr() != b.Ptr().Addr()+10 {
		t.Errorf("slice of the last 90 bytes: %v", err)
	}
	if err := b.Free(); err != nil {
		t.Fatal(err)
	}
	if b.Bytes() != nil || s.Bytes() != nil {
		t.Error("the host has a view of memory that was freed")
	}
	for _, err := range []error{b.Write(0, []byte{1}), b.Read(0, []byte{1}), s.Write(0, []byte{1}), s.Read(0, []byte{1})} {
		if says(t, err, "memory that was freed", "rank 0"); !errors.Is(err, doorbell.ErrClosed) {
			t.Errorf("memory that was freed: %v", err)
		}
	}
	each(t, local(t, 4, doorbell.Options{}), func(r *rank) {
		if err := r.Reserve(r.ctx, 1<<62); !errors.Is(err, doorbell.ErrOutOfMemory) {
			r.fail("4 ranks reserve 2^64 bytes: %v", err)
		}
		bytes := r.Rank() - 1
		if err := r.Reserve(r.ctx, bytes); (err == nil) != (bytes >= 0) {
			r.fail("reserve %d bytes: %v", bytes, err)
		}
	})
}

// TestBadCalls has ranks that make different collective calls, or fewer: each gets an error that names both, and does
// not wait for its deadline.
func TestBadCalls(t *testing.T) {
	start := time.Now()
	cs := local(t, 2, doorbell.Options{})
	each(t, cs, func(r *rank) {
		b := r.alloc(64)
		var err error
		if r.Rank() == 0 {
			_, err = r.Register(r.ctx, b)
		} else {
			_, err = r.DevComm(r.ctx, doorbell.Needs{})
		}
		says(r, err, "window against device communicator", "register", "device communicator", "rank 0", "rank 1")
	})
	each(t, cs, func(r *rank) {
		var err error
		if r.Rank() == 0 {
			err = r.Barrier(r.ctx)
		} else {
			_, err = r.AllGather(r.ctx, nil)
		}
		if says(r, err, "barrier against all-gather", "barrier", "all-gather", "rank 0", "rank 1"); !errors.Is(err, doorbell.ErrDisagree) {
			r.fail("barrier against all-gather: %v", err)
		}
	})
	if took := time.Since(start); took > testBound/2 {
		t.Errorf("took %v: somebody waited for the deadline", took)
	}
	each(t, cs, func(r *rank) {
		if r.Rank() == 0 { // rank 1 does not call at all
			ctx, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
			defer cancel()
			err := r.Barrier(ctx)
			says(r, err, "a call that the other does not make", "barrier", "rank 1", "deadline")
		}
	})
}

// TestNoCause: ranks are expelled and communicators aborted without a reason too, and it is said that there was none; a rank
// that cannot be expelled is refused.
func TestNoCause(t *testing.T) {
	cs := local(t, 3, doorbell.Options{})
	for _, rank := range []int{-1, 0, 3} {
		if err := cs[0].Expel(rank, nil); !errors.Is(err, doorbell.ErrInvalid) {
			t.Errorf("expel rank %d: %v", rank, err)
		}
	}
	if err := cs[0].Expel(2, nil); err != nil {
		t.Fatal(err)
	}
	each(t, cs[:2], func(r *rank) {
		eventually(r, "the loss of rank 2", func() bool { return r.Lost()[2] != nil })
		says(r, r.Lost()[2], "expelled", "expelled by rank 0: no cause given")
		r.Abort(nil)
		_, err := r.Alloc(1)
		says(r, err, "aborted", "aborted: no cause given")
	})
}

// TestAfterClose calls what is closed.
func TestAfterClose(t *testing.T) {
	c := local(t, 1, doorbell.Options{})[0]
	b, err := c.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	st := c.Stream()
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	closed := func(what string, err error) {
		t.Helper()
		if says(t, err, what, "rank 0"); !errors.Is(err, doorbell.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = c.Alloc(64)
	closed("alloc", err)
	_, err = c.Register(t.Context(), b)
	closed("register", err)
	_, err = c.DevComm(t.Context(), doorbell.Needs{})
	closed("device communicator", err)
	closed("barrier", c.Barrier(t.Context()))
	_, err = c.AllGather(t.Context(), nil)
	closed("all-gather", err)
	says(t, doorbell.Launch(st, gpu.Kernel[struct{}]{}, one, struct{}{}), "launch of no kernel", "rank 0", "gpu.NewKernel")
	nop := kernel("nop", func(gpu.Thread) {})
	closed("launch", doorbell.Launch(st, nop, one, struct{}{}))
	closed("launch on a new stream", doorbell.Launch(c.Stream(), nop, one, struct{}{}))
}
