// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

// seat is a rank that has come to rank 0 and waits for the table.
type seat struct {
	pid  int
	conn net.Conn
	card *card // nil: it has not told
}

const (
	resolveBound = 15 * time.Second // a name that does not exist is given up then; it may be made while we wait
	tellPeriod   = 500 * time.Millisecond
)

// meetAll gets the table: rank 0 makes it, the others fetch it. Then it dials.
func (j *joiner) meetAll(ctx context.Context) {
	defer j.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(j.life, cancel)()
	var cards []card
	if j.c.Rank == 0 {
		cards = j.gatherCards(ctx)
	} else {
		cards = j.fetchTable(ctx)
	}
	if cards == nil {
		return
	}
	j.know(cards)
	j.wg.Add(j.c.Rank)
	for r := range j.c.Rank {
		go j.reach(ctx, r, cards[r])
	}
	<-ctx.Done() // dialers go by it
}

// know notes who is who.
func (j *joiner) know(cards []card) {
	hosts := map[netip.Addr]bool{}
	each := make([][]netip.Addr, len(cards))
	for r := range cards {
		each[r] = append(slices.Clone(cards[r].addrs), cards[r].others...)
		for _, a := range each[r] {
			hosts[a] = true
		}
	}
	j.mu.Lock()
	j.hosts, j.absent = hosts, nil
	j.mu.Unlock()
	j.g.mu.Lock()
	j.g.hosts = each
	j.g.mu.Unlock()
}

// seatRank is rank 0's side of one rank's meeting socket, which it owns. The rank holds it until it has the table.
func (j *joiner) seatRank(from int, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(j.life, func() { conn.Close() })()
	j.mu.Lock()
	s, late := j.seats[from], j.dismissed
	s.conn = conn
	j.mu.Unlock()
	if late != "" {
		j.handOut([]net.Conn{conn}, frame{kind: kindGoodbye, payload: []byte(clip(late))}, closeBound)
		return
	}
	conn.SetReadDeadline(time.Now().Add(j.c.handshake))
	f, err := readFrame(conn)
	var c card
	if err == nil && f.kind == kindCard {
		c, err = decodeCard(f.payload)
	} else if err == nil {
		err = fmt.Errorf("frame kind is %d, accepted is %d", f.kind, kindCard)
	}
	if err != nil {
		j.mu.Lock()
		delete(j.seats, from)
		j.mu.Unlock()
		j.note(from, "%s came, but told no card: %v", conn.RemoteAddr(), err)
		return
	}
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok { // what we see of it may be the only address that others can use
		if seen := a.AddrPort().Addr().Unmap(); !seen.IsLinkLocalUnicast() {
			if j.c.Interfaces == nil && !slices.Contains(c.others, seen) && !slices.Contains(c.addrs, seen) {
				c.addrs = append(c.addrs, seen)
			}
			c.others = append(c.others, seen)
			c.trim()
		}
	}
	conn.SetReadDeadline(time.Time{})
	j.mu.Lock()
	s.card = &c
	j.mu.Unlock()
	j.stir()
	f, err = readFrame(conn) // its end: it has the table, or gave up
	j.mu.Lock()
	served := j.hosts != nil
	j.mu.Unlock()
	switch {
	case served || j.life.Err() != nil:
	case err == nil && f.kind == kindGoodbye:
		j.fail(fmt.Errorf("bootstrap: rank 0: join: %w", &DepartedError{Rank: from, Reason: string(f.payload)}))
	case err == nil:
		j.fail(fmt.Errorf("bootstrap: rank 0: join: %w", &PeerLostError{Rank: from, Cause: fmt.Errorf("bad frame: kind %d while it waits for the table", f.kind)}))
	default:
		j.fail(fmt.Errorf("bootstrap: rank 0: join: %w", &PeerLostError{Rank: from, Cause: ErrNoGoodbye}))
	}
}

// stir wakes who waits for seats.
func (j *joiner) stir() {
	select {
	case j.seated <- struct{}{}:
	default:
	}
}

// gatherCards waits until all are seated and hands out the table; meanwhile it tells those who wait for whom.
func (j *joiner) gatherCards(ctx context.Context) []card {
	t := time.NewTicker(tellPeriod)
	defer t.Stop()
	for {
		cards := make([]card, j.c.Size)
		cards[0] = j.me
		absent := newRankSet(j.c.Size)
		var conns []net.Conn
		j.mu.Lock()
		for r := 1; r < j.c.Size; r++ {
			if s := j.seats[r]; s != nil && s.card != nil {
				cards[r] = *s.card
				conns = append(conns, s.conn)
			} else {
				absent.add(r)
			}
		}
		j.absent = absent
		j.mu.Unlock()
		j.g.poke()
		if absent.empty() {
			payload, err := appendTable(nil, cards)
			if err != nil {
				j.fail(fmt.Errorf("bootstrap: rank 0: join: %w", err))
				return nil
			}
			j.know(cards) // first, or an end of a meeting socket would look like a rank that gave up
			j.handOut(conns, frame{kind: kindTable, payload: payload}, j.c.handshake)
			return cards
		}
		select {
		case <-j.seated:
			continue
		case <-t.C:
			var b []byte
			for _, w := range absent {
				b = binary.LittleEndian.AppendUint64(b, w)
			}
			j.handOut(conns, frame{kind: kindAbsent, payload: b}, tellPeriod)
		case <-ctx.Done():
			return nil
		}
	}
}

// handOut writes a frame to each; one that does not read is left to the deadline of the join.
func (j *joiner) handOut(conns []net.Conn, f frame, within time.Duration) {
	wire, err := appendFrame(nil, &f)
	if err != nil {
		j.fail(fmt.Errorf("bootstrap: rank 0: join: %w", err))
		return
	}
	by := time.Now().Add(within)
	for _, c := range conns {
		c.SetWriteDeadline(by)
		if _, err := c.Write(wire); err != nil {
			j.c.Log.Debug("bootstrap: tell rank", "to", c.RemoteAddr(), "err", err)
		}
	}
}

// dismiss tells whoever waits for the table why there will be none.
func (j *joiner) dismiss(reason string) {
	if j.point == nil {
		return
	}
	var conns []net.Conn
	j.mu.Lock()
	j.dismissed = reason
	if j.hosts == nil {
		for _, s := range j.seats {
			if s.conn != nil {
				conns = append(conns, s.conn)
			}
		}
		if j.host != nil {
			conns = append(conns, j.host)
		}
	}
	j.mu.Unlock()
	defer j.shut(conns)
	j.handOut(conns, frame{kind: kindGoodbye, payload: []byte(clip(reason))}, closeBound)
}

// shut ends sockets so that what was written still arrives: one closed with bytes unread would be reset.
func (j *joiner) shut(conns []net.Conn) {
	for _, c := range conns {
		if t, ok := c.(*net.TCPConn); ok {
			t.CloseWrite()
		}
	}
}

// fetchTable is how a rank that is not 0 gets the table. nil: the join has failed or ended.
func (j *joiner) fetchTable(ctx context.Context) []card {
	var p pause
	for {
		for _, at := range j.resolve(ctx) {
			conn, err := dialTCP(ctx, at, j.c.handshake)
			if err != nil {
				if ctx.Err() == nil {
					j.note(0, "dial %s: %v", at, err)
				}
				continue
			}
			cards, done := j.askTable(ctx, conn)
			switch {
			case cards != nil:
				conn.Close()
				j.met = at
				return cards
			case done:
				return nil // dismiss may still have a word for rank 0; stop closes it
			}
			conn.Close()
		}
		if j.failed() || !p.wait(ctx) {
			return nil
		}
	}
}

func (j *joiner) failed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.fatal != nil
}

func dialTCP(ctx context.Context, at netip.AddrPort, within time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: within}
	return d.DialContext(ctx, "tcp", at.String())
}

// resolve returns the addresses of the meeting point. Names are looked up each time: they may come, and change, while a
// job starts.
func (j *joiner) resolve(ctx context.Context) (out []netip.AddrPort) {
	if a, err := netip.ParseAddr(j.point.host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a, j.point.port)}
	}
	if len(j.notesOf([]int{0})) == 0 { // what went wrong before tells more
		j.note(0, "looking up the name %q takes long", j.point.host)
	}
	all, err := j.c.lookup(ctx, j.point.host)
	var dns *net.DNSError
	switch {
	case err == nil:
		j.note(0, "")
	case errors.As(err, &dns) && dns.IsNotFound && time.Since(j.begun) > resolveBound:
		j.fail(fmt.Errorf("bootstrap: rank %d: join at %s: %w", j.c.Rank, j.point, err))
	case ctx.Err() == nil:
		j.note(0, "%v", err)
	}
	for _, a := range all {
		out = append(out, netip.AddrPortFrom(a.Unmap(), j.point.port))
	}
	return out
}

// askTable proves itself to rank 0, tells the own card and waits for the table. done: it came, or the join has failed.
func (j *joiner) askTable(ctx context.Context, conn net.Conn) (cards []card, done bool) {
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	mine := newHello(&j.c, 0)
	mine.purpose = forMeeting
	j.note(0, "%s does not answer", conn.RemoteAddr())
	conn.SetDeadline(time.Now().Add(j.c.handshake))
	if !j.shake(ctx, conn, &mine, conn.RemoteAddr().String(), true) {
		return nil, j.failed()
	}
	payload, err := appendCard(nil, &j.me)
	if err == nil {
		var wire []byte
		if wire, err = appendFrame(nil, &frame{kind: kindCard, payload: payload}); err == nil {
			_, err = conn.Write(wire)
		}
	}
	conn.SetDeadline(time.Time{})
	if ctx.Err() != nil {
		return nil, true
	}
	j.note(0, "it is there and waits for others")
	j.mu.Lock()
	j.host = conn
	j.mu.Unlock()
	for err == nil {
		var f frame
		if f, err = readFrame(conn); err != nil {
			break
		}
		switch f.kind {
		case kindTable:
			if cards, err = decodeTable(f.payload, j.c.Size); err == nil {
				j.note(0, "")
				return cards, true
			}
		case kindAbsent:
			absent := newRankSet(j.c.Size)
			if len(f.payload) != 8*len(absent) {
				err = fmt.Errorf("bad frame: kind %d of %d bytes", f.kind, len(f.payload))
				break
			}
			for i := range absent {
				absent[i] = binary.LittleEndian.Uint64(f.payload[8*i:])
			}
			j.mu.Lock()
			j.absent = absent.and(fullRankSet(j.c.Size))
			j.mu.Unlock()
			j.g.poke()
		case kindGoodbye:
			j.fail(fmt.Errorf("bootstrap: rank %d: join: %w", j.c.Rank, &DepartedError{Rank: 0, Reason: string(f.payload)}))
			return nil, true
		default:
			err = fmt.Errorf("bad frame: kind %d instead of the table", f.kind)
		}
	}
	if ctx.Err() == nil {
		if hasEnded(err) {
			err = ErrNoGoodbye
		}
		j.fail(fmt.Errorf("bootstrap: rank %d: join: %w", j.c.Rank, &PeerLostError{Rank: 0, Cause: err}))
	}
	return nil, true
}
