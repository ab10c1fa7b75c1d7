// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/doorbell-net/doorbell/internal/netif"
	"github.com/doorbell-net/doorbell/netplugin"
)

// way is a socket whose ends have proven who they are, and what it goes through.
type way struct {
	conn  net.Conn
	at    netip.AddrPort
	group int
	path  path
}

// tried is what came of a group of addresses: a way, or why there is none, by address.
type tried struct {
	way  *way
	errs map[netip.AddrPort]error
}

// try dials groups of addresses side by side, those of one group one after another, each to the end of the proof. Group i
// begins i staggers late. What came of each group comes once; when ctx ends, at once.
func (c *connector) try(ctx context.Context, peer int, groups [][]netip.AddrPort, stagger time.Duration, small bool) <-chan tried {
	out := make(chan tried, len(groups))
	for i, addrs := range groups {
		c.wg.Go(func() {
			r := tried{errs: map[netip.AddrPort]error{}}
			if pause(ctx, time.Duration(i)*stagger) {
				for _, at := range addrs {
					conn, err := c.prove(ctx, peer, at, small)
					if err == nil {
						r.way = &way{conn: conn, at: at, group: i}
						break
					}
					r.errs[at] = err
				}
			}
			out <- r
		})
	}
	return out
}

// prove connects to an address, and returns a socket at whose other end is that rank.
func (c *connector) prove(ctx context.Context, peer int, at netip.AddrPort, small bool) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, helloBound)
	defer cancel()
	var d net.Dialer
	if small {
		d.Control = func(_, _ string, raw syscall.RawConn) error { return netif.LimitSegments(raw, netif.SmallSegment) }
	}
	conn, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	if c.e.cfg.Auth != nil {
		err = c.e.cfg.Auth.Dial(conn, peer)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// drop ends attempts that nobody waits for any more, and closes what came of them.
func drop(cancel context.CancelFunc, results <-chan tried, left int) {
	cancel()
	for range left {
		if r := <-results; r.way != nil {
			r.way.conn.Close()
		}
	}
}

// meet connects to a lower rank for the first time: it tries its interfaces side by side until one answers, lets the
// others come too for a short while, chooses the lanes and greets them. It ends with ctx.
func (c *connector) meet(ctx context.Context, peer int) {
	failed := map[netip.AddrPort]error{} // the newest of each
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		ways := c.gather(ctx, peer, failed)
		if len(ways) > 0 {
			c.take(ctx, peer, ways, failed)
			return
		}
		c.failed(peer, told(&c.peers[peer], failed))
		if !pause(ctx, wait) {
			return
		}
	}
}

// gather is the ways to a peer, at most one for each of its interfaces, in its order of preference. Loopback addresses
// are tried only if no other one answers: on another host they are somebody else's.
func (c *connector) gather(ctx context.Context, peer int, failed map[netip.AddrPort]error) (ways []*way) {
	for _, loopback := range []bool{false, true} {
		groups, of := c.peers[peer].groups(loopback)
		if ways = c.gatherOf(ctx, peer, groups, failed); len(ways) > 0 {
			for _, w := range ways {
				w.path = c.through(w.conn, of[w.group])
			}
			slices.SortFunc(ways, func(a, b *way) int { return cmp.Compare(a.group, b.group) })
			return ways
		}
	}
	return nil
}

func (c *connector) gatherOf(ctx context.Context, peer int, groups [][]netip.AddrPort, failed map[netip.AddrPort]error) (ways []*way) {
	ctx, cancel := context.WithCancel(ctx)
	results, left := c.try(ctx, peer, groups, 0, false), len(groups)
	defer func() { drop(cancel, results, left) }()
	start := time.Now()
	var late <-chan time.Time
	for left > 0 {
		select {
		case r := <-results:
			left--
			note(ctx, failed, r.errs)
			if r.way == nil {
				continue
			}
			ways = append(ways, r.way)
			if c.within(r.way.conn.LocalAddr(), r.way.conn.RemoteAddr()) {
				return ways // one is enough
			}
			if late == nil {
				t := time.NewTimer(min(max(graceMin, 2*time.Since(start)), helloBound))
				defer t.Stop()
				late = t.C
			}
		case <-late:
			return ways
		}
	}
	return ways
}

// through is the path of a socket to an interface of a peer.
func (c *connector) through(conn net.Conn, remote peerInterface) path {
	var ip netip.Addr
	if t, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		ip = t.AddrPort().Addr()
	}
	x := interfaceOf(c.mine, ip)
	return join(x.Name, x.Mbits, x.MTU, remote, c.within(conn.LocalAddr(), conn.RemoteAddr()))
}

// take makes lanes of the ways that are chosen and closes the others.
func (c *connector) take(ctx context.Context, peer int, ways []*way, failed map[netip.AddrPort]error) {
	paths := make([]path, len(ways))
	for i, w := range ways {
		paths[i] = w.path
	}
	lanes, why := c.choose(paths, min(c.lanes, c.peers[peer].Lanes))
	c.tell(peer, ways, lanes, why, failed)
	c.mu.Lock()
	c.makeLanes(peer, len(lanes))
	links := c.links[peer]
	c.mu.Unlock()
	for i, w := range ways {
		n := slices.Index(lanes, i)
		if n < 0 {
			w.conn.Close()
			continue
		}
		l := links[n]
		c.reached(l, w.at)
		c.wg.Go(func() {
			err := c.greet(w.conn, l)
			if err == nil {
				return
			}
			w.conn.Close()
			c.failed(peer, fmt.Errorf("lane %d at %s: %w", l.lane, w.at, err))
			c.redial(ctx, l)
		})
	}
}

// tell says in one line which lanes to a peer were chosen, and why others were not. It is for debugging alone where there
// was nothing to choose, or this endpoint has said the same of another peer.
func (c *connector) tell(peer int, ways []*way, lanes []int, why []string, failed map[netip.AddrPort]error) {
	log := c.e.cfg.Log
	if log == nil {
		return
	}
	var used, not, choice []string
	for n, i := range lanes {
		used = append(used, fmt.Sprintf("%d: %s (%s)", n, ways[i].path, ways[i].at))
		choice = append(choice, ways[i].path.String())
	}
	for i, w := range ways {
		if why[i] != "" {
			not = append(not, fmt.Sprintf("%s (%s): %s", w.path, w.at, why[i]))
			choice = append(choice, "no "+w.path.String())
		}
	}
	_, of := c.peers[peer].groups(false)
	for _, p := range of {
		if !slices.ContainsFunc(ways, func(w *way) bool { return w.path.remote == p.Name }) {
			not = append(not, p.Name+": "+cmp.Or(told(&peerAddrs{Interfaces: []peerInterface{p}}, failed).Error(), "no answer when it was time to choose"))
		}
	}
	say := log.Debug
	c.mu.Lock()
	if k := strings.Join(choice, ", "); len(ways) > 1 && !ways[0].path.within && !c.said[k] {
		c.said[k] = true
		say = log.Info
	}
	c.mu.Unlock()
	say("tcp: lanes to a peer", "rank", c.e.cfg.Rank, "peer", peer, "lanes", strings.Join(used, ", "), "not used", strings.Join(not, ", "))
}

// redial connects a lane to a lower rank again: by its own address, or a moment later by any other. It says whether it
// did before ctx ended, or that rank said that this one is lost to it.
func (c *connector) redial(ctx context.Context, l *link) bool {
	failed := map[netip.AddrPort]error{}
	for wait := retryMin; !l.gone.Load(); wait = min(2*wait, retryMax) {
		err := c.redialOnce(ctx, l, failed)
		if err == nil {
			return true
		}
		c.failed(l.peer, err)
		if errors.Is(err, netplugin.ErrPeerLost) {
			return false
		}
		c.large(l)
		if !pause(ctx, wait) {
			return false
		}
	}
	return false
}

func (c *connector) redialOnce(ctx context.Context, l *link, failed map[netip.AddrPort]error) error {
	ctx, cancel := context.WithCancel(ctx)
	before := c.reachedAt(l)
	groups := c.peers[l.peer].waysBack(before)
	results, left := c.try(ctx, l.peer, groups, headStart, c.isSmall(l)), len(groups)
	defer func() { drop(cancel, results, left) }()
	for left > 0 {
		r := <-results
		left--
		note(ctx, failed, r.errs)
		if r.way == nil {
			continue
		}
		err := c.greet(r.way.conn, l)
		if err == nil {
			if log := c.e.cfg.Log; log != nil {
				log.Info("tcp: connected again", "rank", c.e.cfg.Rank, "peer", l.peer, "lane", l.lane, "at", r.way.at, "before", before)
			}
			c.reached(l, r.way.at)
			return nil
		}
		r.way.conn.Close()
		if errors.Is(err, netplugin.ErrPeerLost) {
			return err
		}
		note(ctx, failed, map[netip.AddrPort]error{r.way.at: err})
	}
	return told(&c.peers[l.peer], failed)
}

func (c *connector) reached(l *link, at netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.at = at
}

func (c *connector) reachedAt(l *link) netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.at
}

// note keeps the newest error of each address; what was seen before ctx ended tells more than that it did.
func note(ctx context.Context, failed, errs map[netip.AddrPort]error) {
	for at, err := range errs {
		if failed[at] == nil || !netif.Ended(ctx, err) {
			failed[at] = err
		}
	}
}

// told is what came of each address, in the peer's order.
func told(a *peerAddrs, failed map[netip.AddrPort]error) error {
	var s []string
	for _, p := range a.Interfaces {
		for _, at := range p.Addrs {
			if err := failed[at]; err != nil {
				s = append(s, fmt.Sprintf("%s: %v", at, err))
			}
		}
	}
	return errors.New(strings.Join(s, ", "))
}

// pause waits, and says whether ctx has let it.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
