// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/doorbell-net/doorbell/internal/netif"
	"github.com/doorbell-net/doorbell/netplugin"
)

// Bounds of connecting.
const (
	helloBound = 3 * time.Second       // a socket that does not say who it is
	retryMin   = 10 * time.Millisecond // between two attempts to connect again
	retryMax   = 500 * time.Millisecond
	openAtOnce = 64 // accepted sockets that have not said who they are
)

// connector makes the sockets: it listens, and dials the ranks below this one. It hands each socket to its link and has
// no part in moving data.
type connector struct {
	e    *endpoint
	ln   net.Listener
	life context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
	slot chan struct{}

	mu    sync.Mutex
	peers []peerAddrs
	came  chan struct{} // a link got its first socket
	last  map[int]error // newest failure to reach a rank
	lanes map[int]int   // sockets that have come, by peer
	small map[int]bool  // peers that large packets do not seem to reach; see segments.go
}

// peerAddrs is what a rank says of itself.
type peerAddrs struct {
	Addrs []string // HOST:PORT, most preferred first
}

// onlyLoopback reports whether no other host can reach the rank.
func (p *peerAddrs) onlyLoopback() bool {
	return !slices.ContainsFunc(p.Addrs, func(a string) bool {
		at, err := netip.ParseAddrPort(a)
		return err != nil || !at.Addr().IsLoopback()
	})
}

func newConnector(e *endpoint) (*connector, error) {
	ln, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, fmt.Errorf("open tcp on rank %d: %w", e.cfg.Rank, err)
	}
	c := &connector{e: e, ln: ln, came: make(chan struct{}, 1), last: map[int]error{}, lanes: map[int]int{}, small: map[int]bool{}, slot: make(chan struct{}, openAtOnce)}
	c.life, c.stop = context.WithCancel(context.Background())
	c.wg.Go(c.accept)
	return c, nil
}

// address is where this rank listens: a port on each address of its interfaces that a peer might reach.
func (c *connector) address() []byte {
	port := c.ln.Addr().(*net.TCPAddr).Port
	var a peerAddrs
	ips := c.e.cfg.Interfaces
	if ips == nil {
		all, _ := netif.List() // none: peers will say that they have no address to try
		ips = netif.Addresses(all)
	}
	for _, ip := range ips {
		a.Addrs = append(a.Addrs, net.JoinHostPort(ip.String(), fmt.Sprint(port)))
	}
	text, _ := json.Marshal(a)
	return text
}

// connect meets all peers. It dials lower ranks, and higher ones dial it.
func (c *connector) connect(ctx context.Context, addrs [][]byte) error {
	me, n := c.e.cfg.Rank, c.e.cfg.Ranks
	if len(addrs) != n {
		return fmt.Errorf("connect tcp on rank %d: addresses of %d ranks, %d are accepted", me, len(addrs), n)
	}
	peers := make([]peerAddrs, n)
	for r, text := range addrs {
		if err := json.Unmarshal(text, &peers[r]); err != nil {
			return fmt.Errorf("connect tcp on rank %d: address of rank %d: %w", me, r, err)
		}
	}
	c.mu.Lock()
	c.peers = peers
	for r := range n {
		if r != me {
			// One socket for now and each pair: which address wins is found by trying.
			l := newLink(c.e, r)
			c.e.links[r] = []*link{l}
			c.e.all = append(c.e.all, l)
		}
	}
	c.mu.Unlock()
	for r := range me {
		c.wg.Go(func() { c.dial(ctx, c.e.links[r][0], time.Time{}) })
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

func (c *connector) missing() (ranks []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.e.cfg.Ranks {
		if r != c.e.cfg.Rank && c.lanes[r] == 0 {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

func (c *connector) unmet(missing []int, cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, r := range missing {
		fmt.Fprintf(&b, "; rank %d at %s", r, strings.Join(c.peers[r].Addrs, ", "))
		if c.peers[r].onlyLoopback() {
			b.WriteString(" (loopback alone: it has no other interface that is up with an address of more than its link)")
		}
		if err := c.last[r]; err != nil {
			fmt.Fprintf(&b, ": %v", err)
		}
	}
	return fmt.Errorf("connect tcp on rank %d: not met%s: %w", c.e.cfg.Rank, b.String(), cause)
}

// dial connects a link to a lower rank, trying its addresses until ctx ends or, if until is given, that time has come.
func (c *connector) dial(ctx context.Context, l *link, until time.Time) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(c.life, cancel)
	defer stop()
	if !until.IsZero() {
		var done context.CancelFunc
		ctx, done = context.WithDeadline(ctx, until)
		defer done()
	}
	wait := retryMin
	addrs := c.addrs(l.peer)
	small := c.isSmall(l.peer)
	failed := make([]error, len(addrs)) // the newest of each
	for {
		for i, a := range addrs {
			err := c.dialOne(ctx, l, a, small)
			if err == nil {
				return
			}
			if ctx.Err() != nil && failed[i] != nil {
				break // what was seen before tells more
			}
			failed[i] = err
			c.mu.Lock()
			c.last[l.peer] = told(addrs, failed)
			c.mu.Unlock()
		}
		if small {
			small = c.large(l.peer)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			if !until.IsZero() && c.life.Err() == nil {
				c.giveUp(l)
			}
			return
		case <-t.C:
		}
		wait = min(2*wait, retryMax)
	}
}

// told is what came of each address.
func told(addrs []string, failed []error) error {
	var b strings.Builder
	for i, err := range failed {
		if err != nil {
			if b.Len() > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s: %v", addrs[i], err)
		}
	}
	return errors.New(b.String())
}

func (c *connector) addrs(peer int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peers[peer].Addrs
}

func (c *connector) dialOne(ctx context.Context, l *link, addr string, small bool) error {
	ctx, cancel := context.WithTimeout(ctx, helloBound)
	defer cancel()
	var d net.Dialer
	if small {
		d.Control = func(_, _ string, raw syscall.RawConn) error { return limitSegments(raw, smallSegment) }
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err = conn.SetDeadline(deadline); err == nil && c.e.cfg.Auth != nil {
		err = c.e.cfg.Auth.Dial(conn, l.peer)
	}
	if err == nil {
		err = c.greet(conn, l)
	}
	if err != nil {
		conn.Close()
	}
	return err
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
			if c.life.Err() != nil {
				return
			}
			t := time.NewTimer(retryMin) // out of descriptors, or a dialer that went away
			select {
			case <-t.C:
			case <-c.life.Done():
			}
			continue
		}
		c.wg.Go(func() {
			defer func() { <-c.slot }()
			if err := c.serve(conn); err != nil {
				conn.Close()
				if c.e.cfg.Log != nil {
					c.e.cfg.Log.Debug("tcp: a socket was refused", "rank", c.e.cfg.Rank, "from", conn.RemoteAddr().String(), "error", err)
				}
			}
		})
	}
}

func (c *connector) serve(conn net.Conn) error {
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
	if from <= c.e.cfg.Rank || from >= c.e.cfg.Ranks {
		return fmt.Errorf("rank %d dials rank %d: higher ranks dial lower ones", from, c.e.cfg.Rank)
	}
	// It may dial before this rank has the addresses of all.
	for {
		c.mu.Lock()
		ready := c.peers != nil
		c.mu.Unlock()
		if ready {
			break
		}
		t := time.NewTimer(retryMin)
		select {
		case <-t.C:
		case <-c.life.Done():
			return c.life.Err()
		}
	}
	l := c.e.links[from][0]
	if l.gone.Load() {
		return fmt.Errorf("rank %d is lost to rank %d", from, c.e.cfg.Rank)
	}
	return c.greet(conn, l)
}

// greet tells the other end which of its frames took effect here, hears the same, and hands the socket to the link.
func (c *connector) greet(conn net.Conn, l *link) error {
	var mine, theirs [8]byte
	binary.LittleEndian.PutUint64(mine[:], l.heard.Load())
	if _, err := conn.Write(mine[:]); err != nil {
		return fmt.Errorf("greet: %w", err)
	}
	if _, err := io.ReadFull(conn, theirs[:]); err != nil {
		return fmt.Errorf("greet: %w", err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	fd, err := takeFD(conn.(*net.TCPConn), c.e.cfg.Timeout)
	if err != nil {
		return err
	}
	c.hand(l, &attach{fd: fd, seen: binary.LittleEndian.Uint64(theirs[:])})
	c.mu.Lock()
	c.lanes[l.peer]++
	c.mu.Unlock()
	select {
	case c.came <- struct{}{}:
	default:
	}
	return nil
}

// hand gives a link its socket; one that waits there was never used.
func (c *connector) hand(l *link, a *attach) {
	if old := l.fresh.Swap(a); old != nil && old.lost == nil {
		closeFD(old.fd)
	}
	if c.life.Err() != nil { // the endpoint closes, and may have looked already
		if old := l.fresh.Swap(nil); old != nil && old.lost == nil {
			closeFD(old.fd)
		}
	}
}

// again is called by the link's driver when its socket broke: the higher rank dials again, the lower one waits for it.
func (c *connector) again(l *link, cause error) {
	if c.life.Err() != nil {
		return
	}
	c.mu.Lock()
	c.last[l.peer] = cause
	c.mu.Unlock()
	if c.e.cfg.Log != nil {
		c.e.cfg.Log.Warn("tcp: a socket broke; connecting again", "rank", c.e.cfg.Rank, "peer", l.peer, "error", cause)
	}
	if errors.Is(cause, syscall.ETIMEDOUT) {
		c.trySmall(l.peer)
	}
	until := time.Now().Add(c.e.cfg.Timeout)
	c.wg.Go(func() {
		if l.peer < c.e.cfg.Rank {
			c.dial(c.life, l, until)
			return
		}
		c.mu.Lock()
		had := c.lanes[l.peer]
		c.mu.Unlock()
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		select {
		case <-c.life.Done():
		case <-t.C:
			c.mu.Lock()
			back := c.lanes[l.peer] > had
			c.mu.Unlock()
			if !back {
				c.giveUp(l)
			}
		}
	})
}

// giveUp says that a peer is lost.
func (c *connector) giveUp(l *link) {
	c.mu.Lock()
	cause := c.last[l.peer]
	c.mu.Unlock()
	c.hand(l, &attach{fd: -1, lost: fmt.Errorf("tcp on rank %d: no socket to rank %d for %v (%v): %w",
		c.e.cfg.Rank, l.peer, c.e.cfg.Timeout, cause, netplugin.ErrPeerLost)})
}

func (c *connector) close() error {
	c.stop()
	err := c.ln.Close()
	c.wg.Wait()
	return err
}
