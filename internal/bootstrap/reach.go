// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/doorbell-net/doorbell/internal/netif"
)

// dialStagger is between the starts of connects to one rank's addresses: a black hole holds up the next ones no longer.
const dialStagger = 50 * time.Millisecond

// reach links this rank with a lower one: by its Unix socket if it runs under this kernel and that socket can be reached
// (abstract ones belong to a network namespace), else by whichever of its addresses answers as that rank.
func (j *joiner) reach(ctx context.Context, rank int, c card) {
	defer j.wg.Done()
	var p pause
	for c.unix != "" && c.bootID != "" && c.bootID == j.c.bootID && haveAbstract {
		conn, err := dialUnix(ctx, c.unix)
		if err == nil {
			if j.call(ctx, rank, conn) {
				return
			}
			break
		}
		if !errors.Is(err, syscall.EAGAIN) || !p.wait(ctx) { // full queue: it is there
			break
		}
	}
	var at []netip.AddrPort
	if rank == 0 {
		at = append(at, j.met) // known to work
	}
	for _, a := range c.addrs {
		if x := netip.AddrPortFrom(a, c.port); rank != 0 || x != j.met {
			at = append(at, x)
		}
	}
	for p = (pause{}); !j.tryAll(ctx, rank, at); {
		if j.failed() || !p.wait(ctx) {
			return
		}
	}
}

// tryAll links this rank with another by whichever address answers as that rank. true: done, for better or worse.
func (j *joiner) tryAll(ctx context.Context, rank int, at []netip.AddrPort) (done bool) {
	return j.race(ctx, rank, at, func(conn net.Conn, _ netip.AddrPort) bool { return j.call(ctx, rank, conn) })
}

// race connects to the addresses side by side and hands what stands to use, which owns it, one at a time, so that the
// other end never sees two proofs of one rank. It ends when use says so (true), or all have failed.
func (j *joiner) race(ctx context.Context, rank int, at []netip.AddrPort, use func(net.Conn, netip.AddrPort) bool) (done bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		at   netip.AddrPort
		conn net.Conn
		err  error
	}
	results := make(chan result, len(at))
	for i, a := range at {
		go func() {
			t := time.NewTimer(time.Duration(i) * dialStagger)
			defer t.Stop()
			select {
			case <-t.C:
				conn, err := dialTCP(ctx, a, j.c.handshake)
				results <- result{a, conn, err}
			case <-ctx.Done():
				results <- result{a, nil, ctx.Err()}
			}
		}()
	}
	for range at {
		r := <-results
		switch {
		case r.err != nil && !done && (!netif.Ended(ctx, r.err) || len(j.notesOf([]int{rank})) == 0):
			j.note(rank, "dial %s: %v", r.at, r.err)
		case r.err != nil: // what was seen before tells more
		case done:
			r.conn.Close()
		default:
			if done = use(r.conn, r.at); done {
				cancel()
			}
		}
	}
	return done
}
