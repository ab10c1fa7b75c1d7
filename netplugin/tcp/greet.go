// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/doorbell-net/doorbell/netplugin"
)

// What a greeting says.
const (
	greetOK    = 0 // the socket is this lane's
	greetLanes = 1 // refused: there is another number of lanes
	greetGone  = 2 // refused: the rank that greets is lost to this one
	greetMost  = greetGone
)

const greetBytes = 16

// greeting is the first thing on a socket whose ends have proven who they are. The dialer says which lane it is of how
// many, and the listener the same again, or why not; a refusal says how many lanes there are. Both say which of the
// other's frames took effect there.
//
// 0 code u8 | 1 zero | 2 lane u16 | 4 lanes u16 | 6 zero u16 | 8 heard u64. All little endian.
type greeting struct {
	code        uint8
	lane, lanes uint16
	heard       uint64
}

func (g greeting) encode() (b [greetBytes]byte) {
	le := binary.LittleEndian
	b[0] = g.code
	le.PutUint16(b[2:], g.lane)
	le.PutUint16(b[4:], g.lanes)
	le.PutUint64(b[8:], g.heard)
	return b
}

// errGreeting is what the error of a greeting that cannot be wraps.
var errGreeting = errors.New("bad greeting")

func decodeGreeting(b *[greetBytes]byte) (greeting, error) {
	le := binary.LittleEndian
	g := greeting{code: b[0], lane: le.Uint16(b[2:]), lanes: le.Uint16(b[4:]), heard: le.Uint64(b[8:])}
	switch {
	case g.code > greetMost:
		return g, fmt.Errorf("%w: code %d, 0 to %d is accepted", errGreeting, g.code, greetMost)
	case b[1] != 0 || b[6] != 0 || b[7] != 0:
		return g, fmt.Errorf("%w: spare bytes are not zero", errGreeting)
	case g.lanes > maxLanes || g.code == greetOK && g.lanes == 0:
		return g, fmt.Errorf("%w: %d lanes, 1 to %d are accepted", errGreeting, g.lanes, maxLanes)
	case g.code == greetOK && g.lane >= g.lanes || g.lane >= maxLanes:
		return g, fmt.Errorf("%w: lane %d of %d", errGreeting, g.lane, g.lanes)
	}
	return g, nil
}

func readGreeting(conn net.Conn) (greeting, error) {
	var b [greetBytes]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return greeting{}, fmt.Errorf("read greeting: %w", err)
	}
	return decodeGreeting(&b)
}

func writeGreeting(conn net.Conn, g greeting) error {
	b := g.encode()
	if _, err := conn.Write(b[:]); err != nil {
		return fmt.Errorf("write greeting: %w", err)
	}
	return nil
}

// greet tells a lower rank, proven to be at the other end, which lane the socket is, and gives it to that. It owns conn
// when it succeeds.
func (c *connector) greet(conn net.Conn, l *link) error {
	if err := conn.SetDeadline(time.Now().Add(helloBound)); err != nil {
		return err
	}
	mine := greeting{lane: uint16(l.lane), lanes: uint16(l.lanes), heard: l.heard.Load()}
	if err := writeGreeting(conn, mine); err != nil {
		return err
	}
	theirs, err := readGreeting(conn)
	switch {
	case err != nil:
		return err
	case theirs.code == greetGone:
		return fmt.Errorf("rank %d is lost to rank %d: %w", c.e.cfg.Rank, l.peer, netplugin.ErrPeerLost)
	case theirs.code == greetLanes || theirs.lanes != mine.lanes || theirs.lane != mine.lane:
		return fmt.Errorf("rank %d has %d lanes to rank %d, which greeted it with lane %d of %d: they must agree", l.peer, theirs.lanes, c.e.cfg.Rank, mine.lane, mine.lanes)
	}
	return c.give(conn, l, theirs.heard)
}

// answer hears which lane the socket of a higher rank, proven to be at the other end, is, and gives it to that. It owns
// conn when it succeeds.
func (c *connector) answer(conn net.Conn, from int) error {
	theirs, err := readGreeting(conn)
	if err != nil {
		return err
	}
	if theirs.code != greetOK {
		return fmt.Errorf("%w: code %d from the rank that dials, %d is accepted", errGreeting, theirs.code, greetOK)
	}
	l, has := c.laneOf(from, theirs)
	if l == nil {
		err := fmt.Errorf("rank %d has %d lanes to rank %d, which greets it with lane %d of %d: they must agree", c.e.cfg.Rank, has, from, theirs.lane, theirs.lanes)
		c.failed(from, err)
		return errors.Join(err, writeGreeting(conn, greeting{code: greetLanes, lanes: uint16(has)}))
	}
	if l.gone.Load() {
		return errors.Join(fmt.Errorf("rank %d is lost to rank %d", from, c.e.cfg.Rank), writeGreeting(conn, greeting{code: greetGone, lanes: uint16(has)}))
	}
	if err := writeGreeting(conn, greeting{lane: theirs.lane, lanes: theirs.lanes, heard: l.heard.Load()}); err != nil {
		return err
	}
	return c.give(conn, l, theirs.heard)
}

// laneOf is the lane that a higher rank greets. The first greeting of each says how many there are, and they are made
// then; nil, and how many there are, if that is not what this one says.
func (c *connector) laneOf(from int, g greeting) (l *link, has int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.links[from] == nil && !c.frozen {
		c.makeLanes(from, int(g.lanes))
	}
	if has = len(c.links[from]); has != int(g.lanes) {
		return nil, has
	}
	return c.links[from][g.lane], has
}

// makeLanes makes a peer's links. The caller holds the lock.
func (c *connector) makeLanes(peer, n int) {
	for i := range n {
		l := newLink(c.e, peer)
		l.lane, l.lanes = i, n
		c.links[peer] = append(c.links[peer], l)
	}
}

// give takes the descriptor out of a connection and hands it to its lane.
func (c *connector) give(conn net.Conn, l *link, seen uint64) error {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	fd, err := takeFD(conn.(*net.TCPConn), c.e.cfg.Timeout, c.e.cfg.TrafficClass)
	if err != nil {
		return err
	}
	c.hand(l, &attach{fd: fd, seen: seen})
	c.mu.Lock()
	l.met = true
	c.mu.Unlock()
	select {
	case c.came <- struct{}{}:
	default:
	}
	return nil
}
