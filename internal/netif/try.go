// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Attempt is what came of one address when it was tried.
type Attempt struct {
	Interface string
	From      netip.Addr
	To        string        // that was tried; empty if there was nothing to try
	Answered  bool          // a connection stood, or the other host refused it
	Refused   bool          // the other host is there, but nobody listens at that port
	Took      time.Duration // until it answered or failed
	Err       error         // why there is no answer
}

// Try connects from each usable address of the interfaces and reports, in their order, what came of it. With a target,
// HOST:PORT, it tries each address that the host's name has of the same family. Without one it tries the other addresses
// of this host, and the address itself if it is the only one: that shows that the address can be used, not who else
// reaches it.
//
// Each address is tried for at most the bound, all at the same time, and the name is resolved once before, for at most
// the bound too. Try ends when ctx does.
func Try(ctx context.Context, all []Interface, target string, bound time.Duration) []Attempt {
	var tries []Attempt
	var addrs []netip.Addr
	for _, x := range all {
		if !x.Up {
			continue
		}
		for _, a := range x.usable() {
			tries = append(tries, Attempt{Interface: x.Name, From: a})
			addrs = append(addrs, a)
		}
	}
	var to targets
	if target != "" {
		to = resolve(ctx, target, bound)
	}
	var wg sync.WaitGroup
	for i := range tries {
		t := &tries[i]
		wg.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("no answer within %v", bound))
			defer cancel()
			start := time.Now()
			if target != "" {
				t.To = target
				t.toTarget(ctx, to)
			} else {
				t.toSelf(ctx, addrs)
			}
			t.Took = time.Since(start)
		})
	}
	wg.Wait()
	return tries
}

// ErrFamily is an attempt's error when the target has no address of the family that was tried.
var ErrFamily = errors.New("the target has no address of this family")

// targets is what a target's name stands for.
type targets struct {
	ips  []netip.Addr
	port string
	err  error
}

func resolve(ctx context.Context, target string, bound time.Duration) (t targets) {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		t.err = fmt.Errorf("%q is no HOST:PORT: %w", target, err)
		return t
	}
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("no answer within %v", bound))
	defer cancel()
	t.port = port
	if t.ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
		t.err = fmt.Errorf("resolve %s: %w", host, bounded(ctx, err))
	}
	return t
}

// toTarget tries the target's addresses of the right family one after the other.
func (t *Attempt) toTarget(ctx context.Context, to targets) {
	if t.Err = to.err; t.Err != nil {
		return
	}
	t.Err = ErrFamily
	for _, ip := range to.ips {
		if ip = ip.Unmap(); ip.Is4() != t.From.Is4() {
			continue
		}
		if t.dial(ctx, net.JoinHostPort(ip.String(), to.port)); t.Answered {
			return
		}
	}
}

// toSelf listens at other addresses of this host, one after the other, and tries them.
func (t *Attempt) toSelf(ctx context.Context, addrs []netip.Addr) {
	others := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		// Loopback reaches nothing but itself, and nothing else is reached from it.
		if a != t.From && a.Is4() == t.From.Is4() && a.IsLoopback() == t.From.IsLoopback() {
			others = append(others, a)
		}
	}
	if len(others) == 0 {
		others = append(others, t.From)
	}
	for _, a := range others {
		var lc net.ListenConfig
		ln, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(a, 0).String())
		if err != nil {
			t.To, t.Err = a.String(), err
			continue
		}
		t.dial(ctx, ln.Addr().String()) // the kernel's queue takes the connection: nobody needs to accept
		ln.Close()
		if t.To = a.String(); t.Answered {
			return
		}
	}
}

func (t *Attempt) dial(ctx context.Context, to string) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(t.From, 0))}
	c, err := d.DialContext(ctx, "tcp", to)
	switch {
	case err == nil:
		t.Answered, t.Refused, t.Err = true, false, nil
		c.Close()
	case errors.Is(err, syscall.ECONNREFUSED):
		t.Answered, t.Refused, t.Err = true, true, nil
	default:
		t.Err = bounded(ctx, err)
	}
}

// bounded is the reason why ctx ended, if it did: it says more than a dialer's "i/o timeout".
func bounded(ctx context.Context, err error) error {
	if Ended(ctx, err) {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return err
}

// Ended reports whether a dial under ctx failed for no other reason than that ctx ends: such an error tells nothing, and
// is not to take the place of one that does. A dialer looks at the deadline itself, and may be ahead of ctx's own timer.
func Ended(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	var to interface{ Timeout() bool }
	d, ok := ctx.Deadline()
	return ok && errors.As(err, &to) && to.Timeout() && time.Until(d) < time.Millisecond
}
