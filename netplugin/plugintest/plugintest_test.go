// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestRight: plugins that keep the rules pass, in whatever manner they work.
func TestRight(t *testing.T) {
	for _, p := range []*toy{{}, {async: true}, {async: true, far: true}} {
		for _, ranks := range []int{2, 3} {
			t.Run(fmt.Sprintf("async=%v,far=%v,ranks=%d", p.async, p.far, ranks), func(t *testing.T) {
				Run(t, func(testing.TB) Harness { return Harness{Plugin: p, Ranks: ranks} })
			})
		}
	}
}

// TestUnordered: a network that says that it keeps no order, and keeps none, passes too.
func TestUnordered(t *testing.T) {
	p := &toy{breaks: "order", async: true, unordered: true}
	Run(t, func(testing.TB) Harness { return Harness{Plugin: p} })
}

// TestBroken: of each rule there is a plugin that breaks it, and the check of that rule says so.
func TestBroken(t *testing.T) {
	seen := map[string]bool{}
	for _, b := range []struct {
		breaks string
		async  bool
		far    bool
		check  string
		says   string
	}{
		{breaks: "open", check: "open", says: "was not refused"},
		{breaks: "lose put", check: "put", says: "bytes are wrong"},
		{breaks: "lose put", check: "history", says: "bytes are wrong"},
		{breaks: "neighbour", check: "put", says: "1 bytes are wrong"},
		{breaks: "state", check: "put", says: "did not set its State"},
		{breaks: "count", check: "put", says: "operations"},
		{breaks: "double signal", check: "signal", says: "want"},
		{breaks: "lose signal", check: "signal", says: "want"},
		{breaks: "double signal", check: "history", says: "want"},
		{breaks: "no get", check: "get", says: "a get of"},
		{breaks: "no get", check: "history", says: "brought"},
		{breaks: "payload late", check: "payload-first", says: "not the payload"},
		{breaks: "reorder", check: "history", says: "history"},
		{breaks: "order", async: true, check: "history", says: "history"},
		{breaks: "order", async: true, check: "payload-first", says: "not the payload"},
		{breaks: "lose completion", async: true, check: "put", says: "no end within"},
		{breaks: "complete twice", async: true, check: "put", says: "not on its way"},
		{breaks: "overfill", async: true, check: "put", says: "room for"},
		{breaks: "ignore", check: "bounds", says: "was not refused"},
		{breaks: "no error", check: "bounds", says: "its error is <nil>"},
		{breaks: "bounds error", check: "bounds", says: "does not wrap"},
		{breaks: "write what fits", check: "bounds", says: "bytes are wrong"},
		{breaks: "write past the end", check: "bounds", says: "bytes are wrong"},
		{breaks: "raise, then fail", check: "bounds", says: "signal 0 of rank 1 is 1"},
		{breaks: "overflow", check: "bounds", says: "panic"},
		{breaks: "misaligned", check: "alignment", says: "was not refused"},
		{breaks: "kind", check: "bounds", says: "of kind 0 was not refused"},
		{breaks: "go on", check: "failure", says: "takes nothing after one that failed"},
		{breaks: "late go on", async: true, check: "failure", says: "and the later"},
		{breaks: "import", check: "regions", says: "was not refused"},
		{breaks: "forget", check: "regions", says: "forgotten region was not refused"},
		{breaks: "region reuse", check: "regions", says: "gave region"},
		{breaks: "close", check: "close", says: "close number 2"},
		{breaks: "close, go on", check: "close", says: "closed"},
		{breaks: "limit", check: "limit", says: "bytes are wrong"},
		{breaks: "32 bits", check: "large-offsets", says: "wrote to offset"},
		{breaks: "get late", async: true, check: "get-order", says: "between two puts"},
		{breaks: "weak early", check: "weak", says: "not its payload"},
		{breaks: "takes more", async: true, check: "burst", says: "not on its way"},
		{breaks: "touches more", async: true, check: "burst", says: "and set State"},
		{breaks: "context 8 bits", async: true, check: "contexts", says: "a former operation failed"},
		{breaks: "drop without room", async: true, check: "no-room", says: "no end within"},
		{breaks: "few regions", check: "many-regions", says: "bytes are wrong"},
		{breaks: "withdraw", async: true, far: true, check: "withdraw", says: "after it was withdrawn"},
		{breaks: "late go on", async: true, far: true, check: "withdraw", says: "and the later"},
		{breaks: "lose, silent", async: true, far: true, check: "lose", says: "no end within"},
		{breaks: "lose, go on", async: true, far: true, check: "lose", says: "want what wraps ErrPeerLost"},
		{breaks: "epoch", async: true, far: true, check: "epoch", says: "of another epoch was done"},
		{breaks: "allocate", check: "allocations", says: "want none"},
	} {
		seen[b.check] = true
		if b.check == "large-offsets" && raceEnabled {
			continue // not tried there
		}
		t.Run(b.breaks+"/"+b.check, func(t *testing.T) {
			p := &toy{breaks: b.breaks, async: b.async, far: b.far}
			said := record(t, b.check, Harness{Plugin: p, Deadline: 100 * time.Millisecond, Seed: 5})
			if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, b.says) }) {
				t.Errorf("check %q said %q (want one that has %q)", b.check, said, b.says)
			}
			if said := record(t, b.check, Harness{Plugin: &toy{async: b.async, far: b.far}, Seed: 5}); len(said) > 0 {
				t.Errorf("check %q said %q of a right plugin", b.check, said)
			}
		})
	}
	for _, c := range checks {
		// A broken one there is a data race, which would fail this test too under the race detector.
		if !seen[c.name] && c.name != "concurrent" {
			t.Errorf("no broken plugin is tried on check %q", c.name)
		}
	}
}

// TestConcurrentFails: the check in two goroutines sees what never comes.
func TestConcurrentFails(t *testing.T) {
	said := record(t, "concurrent", Harness{Plugin: &toy{breaks: "lose signal"}, Deadline: 50 * time.Millisecond})
	if len(said) == 0 {
		t.Error("a lost signal was not noticed")
	}
}

// record runs a check on a testing.TB that fails nothing, and returns what it said.
func record(t *testing.T, name string, h Harness) []string {
	t.Helper()
	i := slices.IndexFunc(checks, func(c check) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no check %q", name)
	}
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		checks[i].on(r, h)
	}()
	<-done
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	return r.said
}

// recorder is a testing.TB that keeps failures to itself.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	said     []string
	cleanups []func()
}

func (r *recorder) add(s string) {
	r.mu.Lock()
	r.said = append(r.said, s)
	r.mu.Unlock()
}

func (r *recorder) Helper()                   {}
func (r *recorder) Logf(string, ...any)       {}
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Error(a ...any)            { r.add(fmt.Sprint(a...)) }
func (r *recorder) Errorf(f string, a ...any) { r.add(fmt.Sprintf(f, a...)) }
func (r *recorder) Fatal(a ...any)            { r.add(fmt.Sprint(a...)); runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.add(fmt.Sprintf(f, a...)); runtime.Goexit() }
func (r *recorder) FailNow()                  { r.add("FailNow"); runtime.Goexit() }
