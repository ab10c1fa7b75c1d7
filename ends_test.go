// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
	"github.com/doorbell-net/doorbell/moe"
)

// endsEnv tells a child in what a rank ends.
const endsEnv = "TEST_ENDS"

// ends are the ways in which rank 2 ends while the others are in an operation that needs it, and what they say then.
var ends = map[string]struct {
	there   bool // rank 2 stands before the operation; else it may be anywhere in it
	timeout string
	says    []string // one of them
}{
	"killed":          {true, "20s", []string{"PeerLost", "is lost"}},
	"killed anywhere": {false, "20s", []string{"PeerLost", "is lost"}},
	"stopped":         {true, "2s", []string{"Timeout", "waited "}},
	"leaves":          {true, "20s", []string{"PeerLost", "has left", "has departed"}},
}

// endsIn is one call of each kind of operation, again and again. before is called before what rank 2 is to leave out.
var endsIn = map[string]func(r *rank, before func() error) func() error{
	"barrier": func(r *rank, before func() error) func() error {
		return func() error {
			if err := before(); err != nil {
				return err
			}
			return r.Barrier(context.Background())
		}
	},
	"registration": func(r *rank, before func() error) func() error {
		buf := r.alloc(4096)
		return func() error {
			if err := before(); err != nil {
				return err
			}
			w, err := r.Register(context.Background(), buf)
			return errors.Join(err, closeIf(w))
		}
	},
	"device barrier": func(r *rank, before func() error) func() error {
		dc := r.devComm(doorbell.Needs{Barriers: 1})
		return func() error {
			if err := before(); err != nil {
				return err
			}
			var s gin.Status
			r.run(func(t gpu.Thread) {
				d := dc.Device()
				c := gin.Open(&d, 0)
				s = c.Barrier(gin.ByThread(t), gin.World(&d), 0, gin.FencePut)
			})
			if s == gin.OK {
				return nil
			}
			return fmt.Errorf("device barrier: %v: %w", s, dc.Cause())
		}
	},
	"dispatch": func(r *rank, before func() error) func() error { return layer(r, before, goOn) },
	"combine":  func(r *rank, before func() error) func() error { return layer(r, goOn, before) },
}

func goOn() error { return nil }

// errLeft is what rank 2 gets before an operation that it leaves out.
var errLeft = errors.New("left")

func closeIf(w *doorbell.Window) error {
	if w == nil {
		return nil
	}
	return w.Close()
}

// layer is a dispatch and a combine, each waited for.
func layer(r *rank, beforeDispatch, beforeCombine func() error) func() error {
	const tokens, hidden = 4, 16
	b, err := moe.New(r.ctx, r.Comm, moe.Options{MaxTokens: tokens, Hidden: hidden, TopK: 2, Experts: 6})
	r.must(err)
	x := moe.Tokens{
		N: tokens, X: r.alloc(2 * tokens * hidden).Ptr(), Experts: gpu.Cast[int32](r.alloc(8 * tokens).Ptr()), Weights: gpu.Cast[float32](r.alloc(8 * tokens).Ptr()),
	}
	experts := gpu.Slice(x.Experts, 2*tokens)
	for i := range experts {
		experts[i] = int32(i+3*r.Rank()) % 6
	}
	y := r.alloc(2 * tokens * hidden).Ptr()
	st := r.Stream()
	return func() error {
		if err := beforeDispatch(); err != nil {
			return err
		}
		got, err := b.Dispatch(st, x)
		if err == nil {
			err = b.Wait(context.Background(), st)
		}
		if err != nil {
			return err
		}
		if err := beforeCombine(); err != nil {
			return err
		}
		if err := b.Combine(st, got, y); err != nil {
			return err
		}
		return b.Wait(context.Background(), st)
	}
}

// TestEndsAnywhere has a rank be killed, stopped, or leave while the others are in a barrier of host or device, in a
// registration, a dispatch or a combine. Each of them ends soon, says that it is rank 2 and why, and closes.
func TestEndsAnywhere(t *testing.T) {
	noProcesses(t)
	rnd := testenv.Random(t)
	for how, e := range ends {
		for where := range endsIn {
			wait := time.Duration(rnd.Int64N(int64(20 * time.Millisecond)))
			t.Run(how+" in "+where, func(t *testing.T) {
				t.Parallel()
				endsOnce(t, how, where, e.there, e.timeout, wait)
			})
		}
	}
}

var namesRank2 = regexp.MustCompile(`(?m)^ended with: .*(rank 2|ranks [01], 2)`)

func endsOnce(t *testing.T, how, where string, there bool, timeout string, wait time.Duration) {
	cs := startJob(t, "ends", 3, all(3), endsEnv+"="+how+":"+where, "DOORBELL_TIMEOUT="+timeout)
	for _, c := range cs {
		c.mark("under way")
	}
	if there {
		cs[2].tell()
		cs[2].mark("there")
	} else {
		time.Sleep(wait) // sleep: the moment is drawn
	}
	switch how {
	case "leaves":
		cs[2].tell()
	case "stopped":
		cs[2].stop()
	default:
		cs[2].signal(syscall.SIGKILL)
	}
	for _, c := range cs[:2] {
		c.mark("seen")
	}
	// One of them may wait for the other, which is held up by rank 2; and a device barrier's status names nobody.
	if said := cs[0].text() + cs[1].text(); how == "stopped" && where != "device barrier" && !namesRank2.MatchString(said) {
		t.Errorf("nobody names rank 2:\n%s", said)
	}
	for _, c := range cs[:2] { // who closes is seen to leave
		c.tell()
	}
	for _, c := range cs[:2] {
		c.done()
	}
	if how == "leaves" {
		cs[2].done()
	}
}

func childEnds(r *rank) {
	how, where, _ := strings.Cut(os.Getenv(endsEnv), ":")
	told := make(chan struct{}, 2)
	go func() {
		for range 2 {
			if line, err := stdin.ReadString('\n'); err != nil || line != "go\n" {
				return
			}
			told <- struct{}{}
		}
	}()
	step := endsIn[where](r, func() error {
		if r.Rank() != 2 {
			return nil
		}
		select {
		case <-told:
			mark("there")
			<-told
			return cmp.Or(r.Close(), errLeft)
		default:
			return nil
		}
	})
	r.sync()
	r.must(step())
	mark("under way")
	var err error
	for err == nil {
		err = step()
	}
	if errors.Is(err, errLeft) {
		return
	}
	if r.Rank() == 2 {
		r.fail("it went wrong before it ended: %v", err)
	}
	fmt.Printf("ended with: %v\n", err)
	text := err.Error()
	some := false
	for _, s := range ends[how].says {
		some = some || strings.Contains(text, s)
	}
	lost := r.Lost()
	good := strings.Contains(text, "rank 2") && (len(lost) == 0 || len(lost) == 1 && lost[2] != nil) // it is told of a moment later
	if how == "stopped" {
		good = len(lost) == 0 // whom it waited for: see endsOnce
	}
	if !good || !some {
		r.fail("%s in %s: %v, lost %v; want rank 2 and one of %q", how, where, err, lost, ends[how].says)
	}
	mark("seen")
	<-told
}
