// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/doorbell-net/doorbell/internal/netif"
	"github.com/doorbell-net/doorbell/netplugin"
)

// Bounds of connecting.
const (
	helloBound = 3 * time.Second        // an address, until its socket is proven; a greeting
	headStart  = 300 * time.Millisecond // of a lane's own address over others, when it connects again
	retryMin   = 10 * time.Millisecond  // between two attempts to connect
	retryMax   = 500 * time.Millisecond
	openAtOnce = 64 // accepted sockets that have not proven who they are
)

// graceMin is for other interfaces, after the first answered; or twice as long as that took. Tests of several lanes on busy
// machines give more.
var graceMin = 200 * time.Millisecond

// connector makes the sockets: it listens, and dials the ranks below this one. It hands each socket to its lane and has
// no part in moving data.
type connector struct {
	e     *endpoint
	ln    net.Listener
	life  context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup
	slot  chan struct{}
	lanes int // most to a peer

	// What tests put others in the place of.
	list   func() ([]netif.Interface, error)
	within func(local, remote net.Addr) bool
	choose func(paths []path, most int) (lanes []int, why []string)

	// Written before ready is closed.
	peers []peerAddrs
	mine  []netif.Interface
	ready chan struct{}
	came  chan struct{} // a lane got its first socket

	mu     sync.Mutex
	links  [][]*link       // by peer, then by lane; none until it is known how many
	frozen bool            // no more are made
	last   map[int]error   // newest failure to reach a rank
	said   map[string]bool // lanes that were told of
}

func newConnector(e *endpoint) (*connector, error) {
	ln, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, fmt.Errorf("open tcp on rank %d: %w", e.cfg.Rank, err)
	}
	c := &connector{
		e: e, ln: ln, slot: make(chan struct{}, openAtOnce), lanes: e.cfg.Lanes, list: netif.List, within: sameHost, choose: chooseLanes,
		ready: make(chan struct{}), came: make(chan struct{}, 1), links: make([][]*link, e.cfg.Ranks), last: map[int]error{}, said: map[string]bool{},
	}
	c.life, c.stop = context.WithCancel(context.Background())
	c.wg.Go(c.accept)
	return c, nil
}

// address is what this rank says of itself to its peers.
func (c *connector) address() []byte {
	all, _ := c.list() // none: peers will say that they have no address to try
	return ours(all, c.e.cfg.Interfaces, uint16(c.ln.Addr().(*net.TCPAddr).Port), c.lanes).encode()
}

// connect meets all peers. It dials lower ranks, and higher ones dial it. The lanes are those of the endpoint when it
// succeeds, and no other ones are made afterwards.
func (c *connector) connect(ctx context.Context, addrs [][]byte) error {
	me, n := c.e.cfg.Rank, c.e.cfg.Ranks
	if len(addrs) != n {
		return fmt.Errorf("connect tcp on rank %d: addresses of %d ranks, %d are accepted", me, len(addrs), n)
	}
	peers := make([]peerAddrs, n)
	for r, text := range addrs {
		var err error
		if peers[r], err = parseAddrs(text); err != nil {
			return fmt.Errorf("connect tcp on rank %d: address of rank %d: %w", me, r, err)
		}
	}
	c.peers = peers
	c.mine, _ = c.list() // none: each address counts as an interface
	close(c.ready)
	dial, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	for r := range me {
		c.wg.Go(func() { c.meet(dial, r) })
	}
	for {
		missing := c.missing()
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-c.came:
		case <-ctx.Done():
			return c.unmet(missing, context.Cause(ctx))
		case <-c.life.Done():
			return fmt.Errorf("connect tcp on rank %d: endpoint is closed", me)
		}
	}
}

// missing is the ranks one of whose lanes has no socket yet; if there is none, the lanes become the endpoint's.
func (c *connector) missing() (ranks []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.e.cfg.Ranks {
		if r != c.e.cfg.Rank && !met(c.links[r]) {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == 0 {
		c.frozen = true
		c.e.links = c.links
		for _, links := range c.links {
			c.e.all = append(c.e.all, links...)
		}
	}
	return ranks
}

// met says whether all lanes of a peer have had a socket. The caller holds the lock.
func met(links []*link) bool {
	for _, l := range links {
		if !l.met {
			return false
		}
	}
	return len(links) > 0
}

func (c *connector) unmet(missing []int, cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = true
	var b strings.Builder
	for _, r := range missing {
		fmt.Fprintf(&b, "; rank %d at %s", r, &c.peers[r])
		if c.peers[r].onlyLoopback() {
			b.WriteString(" (loopback alone: it has no other interface that is up with an address of more than its link)")
		}
		for _, l := range c.links[r] {
			if !l.met {
				fmt.Fprintf(&b, " (lane %d of %d has not come)", l.lane, l.lanes)
			}
		}
		if err := c.last[r]; err != nil {
			fmt.Fprintf(&b, ": %v", err)
		}
	}
	return fmt.Errorf("connect tcp on rank %d: not met%s: %w", c.e.cfg.Rank, b.String(), cause)
}

// failed notes why a peer was not reached.
func (c *connector) failed(peer int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[peer] = err
}

// accept serves the ranks above this one until the endpoint closes. A stranger, or one that stays silent, costs a slot
// for a while and disturbs nobody.
func (c *connector) accept() {
	for {
		select {
		case c.slot <- struct{}{}:
		case <-c.life.Done():
			return
		}
		conn, err := c.ln.Accept()
		if err != nil {
			<-c.slot
			if c.life.Err() != nil || !pause(c.life, retryMin) { // out of descriptors, or a dialer that went away
				return
			}
			continue
		}
		c.wg.Go(func() {
			proven := sync.OnceFunc(func() { <-c.slot })
			defer proven()
			if err := c.serve(conn, proven); err != nil {
				conn.Close()
				if c.e.cfg.Log != nil {
					c.e.cfg.Log.Debug("tcp: a socket was refused", "rank", c.e.cfg.Rank, "from", conn.RemoteAddr().String(), "error", err)
				}
			}
		})
	}
}

// serve hears who dialled, and for which lane. It calls proven when the former is known: a rank may wait a while before
// it greets, for its other interfaces.
func (c *connector) serve(conn net.Conn, proven func()) error {
	stop := context.AfterFunc(c.life, func() { conn.Close() })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(helloBound)); err != nil {
		return err
	}
	if c.e.cfg.Auth == nil {
		return errors.New("no way to know who it is")
	}
	from, err := c.e.cfg.Auth.Answer(conn)
	if err != nil {
		return err
	}
	proven()
	if from <= c.e.cfg.Rank || from >= c.e.cfg.Ranks {
		return fmt.Errorf("rank %d dials rank %d: higher ranks dial lower ones", from, c.e.cfg.Rank)
	}
	if err := conn.SetDeadline(time.Now().Add(2 * helloBound)); err != nil {
		return err
	}
	t := time.NewTimer(2 * helloBound)
	defer t.Stop()
	select {
	case <-c.ready: // it may dial before this rank has the addresses of all
	case <-t.C:
		return fmt.Errorf("rank %d dials before rank %d has begun to connect", from, c.e.cfg.Rank)
	case <-c.life.Done():
		return c.life.Err()
	}
	return c.answer(conn, from)
}

// hand gives a lane its socket; one that waits there was never used.
func (c *connector) hand(l *link, a *attach) {
	if old := l.fresh.Swap(a); old != nil && old.lost == nil {
		closeFD(old.fd)
	}
}

// again is called by the lane's driver when its socket broke for the nth time: the higher rank dials again, the lower
// one waits for it.
func (c *connector) again(l *link, cause error) {
	if c.life.Err() != nil {
		return
	}
	c.failed(l.peer, cause)
	if c.e.cfg.Log != nil {
		c.e.cfg.Log.Warn("tcp: a socket broke; connecting again", "rank", c.e.cfg.Rank, "peer", l.peer, "lane", l.lane, "error", cause)
	}
	if errors.Is(cause, syscall.ETIMEDOUT) {
		c.trySmall(l)
	}
	n, begun := l.breaks, time.Now()
	ctx, cancel := context.WithTimeout(c.life, c.e.cfg.Timeout)
	c.wg.Go(func() {
		defer cancel()
		if l.peer > c.e.cfg.Rank {
			<-ctx.Done()
		} else if c.redial(ctx, l) {
			return
		}
		if c.life.Err() == nil {
			c.giveUp(l, n, time.Since(begun))
		}
	})
}

// giveUp says that a peer is lost after so long, unless the lane has a socket by now, or has had one since its nth break: its
// driver knows.
func (c *connector) giveUp(l *link, n uint64, after time.Duration) {
	c.mu.Lock()
	cause := c.last[l.peer]
	c.mu.Unlock()
	a := &attach{fd: -1, breaks: n, lost: fmt.Errorf("tcp on rank %d: no socket to rank %d for lane %d for %v (%v): %w",
		c.e.cfg.Rank, l.peer, l.lane, after.Round(time.Millisecond), cause, netplugin.ErrPeerLost)}
	for {
		old := l.fresh.Load()
		if old != nil && old.lost == nil || l.fresh.CompareAndSwap(old, a) {
			return
		}
	}
}

// close ends all attempts, and closes sockets that no driver has taken. No driver runs any more.
func (c *connector) close() error {
	c.stop()
	err := c.ln.Close()
	c.wg.Wait()
	for _, links := range c.links {
		for _, l := range links {
			c.hand(l, nil)
		}
	}
	return err
}
