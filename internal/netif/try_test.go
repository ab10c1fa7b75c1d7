// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// loop has addresses that a linux host answers at without any being set up: all of 127.0.0.0/8 is its own.
var loop = fakes("lo 127.0.0.1 127.0.0.2", "eth0! 10.0.0.1")

const bound = 5 * time.Second // far above what any of this takes

func listener(t *testing.T, at string) string {
	t.Helper()
	ln, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

func TestTryAnother(t *testing.T) {
	got := Try(context.Background(), loop, "", bound)
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	for i, to := range []string{"127.0.0.2", "127.0.0.1"} { // each by the other
		if a := got[i]; a.To != to || !a.Answered || a.Refused || a.Err != nil || a.Interface != "lo" {
			t.Errorf("%+v", a)
		}
	}
	if got := Try(context.Background(), fakes("lo 127.0.0.1"), "", bound); len(got) != 1 || got[0].To != "127.0.0.1" || !got[0].Answered {
		t.Errorf("an address alone: %+v", got)
	}
	if got := Try(context.Background(), fakes("eth0! 10.0.0.1", "eth1 fe80::1%eth1", "tap0"), "", bound); len(got) != 0 {
		t.Errorf("nothing to try from: %+v", got)
	}
}

// TestTryAddressThatIsNotOurs: an address that left the host meanwhile can't be used, and is told with the reason.
func TestTryAddressThatIsNotOurs(t *testing.T) {
	got := Try(context.Background(), fakes("eth0 203.0.113.5"), "", bound)
	if len(got) != 1 || got[0].Answered || got[0].Err == nil || !strings.Contains(got[0].Err.Error(), "203.0.113.5") {
		t.Errorf("%+v", got)
	}
}

func TestTryTarget(t *testing.T) {
	at := listener(t, "127.0.0.1:0")
	for _, a := range Try(context.Background(), loop, at, bound) {
		if !a.Answered || a.Refused || a.To != at {
			t.Errorf("%+v", a)
		}
	}
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at = gone.Addr().String()
	gone.Close()
	if a := Try(context.Background(), loop, at, bound)[0]; !a.Answered || !a.Refused || a.Err != nil {
		t.Errorf("nobody listens: %+v", a)
	}
	for _, c := range []struct{ to, want string }{
		{"nonsense", "no HOST:PORT"},
		{"no such host:80", "resolve no such host: "},
		{"[::1]:80", ErrFamily.Error()},
	} {
		if a := Try(context.Background(), loop, c.to, bound)[0]; a.Answered || a.Err == nil || !strings.Contains(a.Err.Error(), c.want) {
			t.Errorf("%s: %+v (want %q)", c.to, a, c.want)
		}
	}
}

// TestTryIsBounded: the end of the context, or of the bound, ends a try and is the reason that is told.
func TestTryIsBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a := Try(ctx, loop, listener(t, "127.0.0.1:0"), bound)[0]
	if a.Answered || a.Err == nil {
		t.Errorf("after its context ended: %+v", a)
	}
	a = Try(context.Background(), loop, "127.0.0.1:1", time.Nanosecond)[0]
	if a.Answered || a.Err == nil || !strings.Contains(a.Err.Error(), "no answer within 1ns") {
		t.Errorf("%+v", a)
	}
}

func TestEnded(t *testing.T) {
	soon, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	// A dialer that is ahead of its context's timer, without a race to see it: the deadline is there, the end is not.
	over := deadlineOnly{context.Background(), time.Now()}
	gone, end := context.WithCancel(context.Background())
	end()
	slow := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	noPort := &net.OpError{Op: "dial", Err: syscall.EADDRNOTAVAIL}
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want bool
	}{
		{"a dialer's own bound", soon, slow, false},
		{"no port", soon, noPort, false},
		{"ahead of the timer", over, slow, true},
		{"no port, at the very end", over, noPort, false},
		{"cancelled", gone, noPort, true},
		{"no deadline", context.Background(), slow, false},
	} {
		if got := Ended(c.ctx, c.err); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// deadlineOnly is a context whose deadline has come and whose timer has not.
type deadlineOnly struct {
	context.Context
	at time.Time
}

func (d deadlineOnly) Deadline() (time.Time, bool) { return d.at, true }
