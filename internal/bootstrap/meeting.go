// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/doorbell-net/doorbell/internal/netif"
)

// seat is a rank that has come to rank 0 and waits for the table.
type seat struct {
	pid  int
	conn net.Conn
	card *card // nil: it has not told
}

const (
	tellPeriod = 500 * time.Millisecond
	slowName   = 2 * time.Second // a lookup that takes longer is worth a line
)

// meetAll gets the table: rank 0 makes it, the others fetch it. Then it dials.
func (j *joiner) meetAll(ctx context.Context) {
	defer j.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(j.life, cancel)()
	var cards []card
	if j.c.Rank == 0 {
		if j.point.file != "" {
			watch, over := context.WithCancel(ctx)
			defer over()
			j.wg.Go(func() { j.keepRecord(watch) })
		}
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
	j.mu.Lock()
	s, late := j.seats[from], j.dismissed
	s.conn = conn
	j.mu.Unlock()
	if late != "" {
		j.handOut([]net.Conn{conn}, frame{kind: kindGoodbye, payload: []byte(clip(late))}, closeBound)
		j.shut([]net.Conn{conn})
		return
	}
	defer context.AfterFunc(j.life, func() { conn.Close() })()
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
	p, slow := pause{}, pause{most: placePause}
	for {
		var at []netip.AddrPort
		var from *record
		if j.point.file == "" {
			at = j.resolve(ctx)
		} else if from = j.readPlace(ctx); from != nil {
			at = from.at
		}
		var host net.Conn
		done := j.race(ctx, 0, at, func(conn net.Conn, at netip.AddrPort) bool {
			if j.sit(ctx, conn) {
				host, j.met = conn, at
				return true
			}
			conn.Close()
			return j.failed()
		})
		switch {
		case host != nil:
			return j.awaitTable(ctx, host)
		case done || j.failed() || ctx.Err() != nil:
			return nil
		case from != nil:
			j.stale(from)
		}
		again := &p
		if len(at) == 0 || from != nil { // a name server or storage is asked, which is not to be flooded
			again = &slow
		}
		if !again.wait(ctx) {
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
	d := net.Dialer{Timeout: within, Control: func(_, _ string, raw syscall.RawConn) error { return netif.LimitSegments(raw, netif.SmallSegment) }}
	return d.DialContext(ctx, "tcp", at.String())
}

// resolve returns the addresses of the meeting point; none: its name does not resolve, yet. Names are looked up each
// time, also one that the name server says is not there: that of a pod comes with the pod, and any may change while a job
// starts. The join's deadline is the only end of it; the first failure is logged at once, and each is in the join's error.
func (j *joiner) resolve(ctx context.Context) (out []netip.AddrPort) {
	name := j.point.host
	if a, err := netip.ParseAddr(name); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a, j.point.port)}
	}
	if len(j.notesOf([]int{0})) == 0 { // what went wrong before tells more
		j.note(0, "looking up the name %q takes long", name)
	}
	until := "the join is ended"
	if by, ok := ctx.Deadline(); ok {
		until = "the join's deadline in " + span(time.Until(by)).String()
	}
	slow := time.AfterFunc(j.c.slowName, func() {
		j.once("slow name", "bootstrap: looking up the rendezvous' name takes long", "rank", j.c.Rank, "name", name, "since", span(time.Since(j.begun)), "until", until)
	})
	defer slow.Stop()
	all, err := j.c.lookup(ctx, name)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("the name %q has no address", name)
	}
	switch {
	case err == nil:
		j.note(0, "")
	case !netif.Ended(ctx, err):
		j.note(0, "the name %q does not resolve: %v", name, err)
		j.once("bad name", "bootstrap: the rendezvous' name does not resolve: trying again", "rank", j.c.Rank, "name", name, "err", err, "until", until)
	}
	for _, a := range all {
		out = append(out, netip.AddrPortFrom(a.Unmap(), j.point.port))
	}
	return out
}

// sit proves this rank to rank 0. false: that is not rank 0, or not yet, or the join has failed.
func (j *joiner) sit(ctx context.Context, conn net.Conn) bool {
	me := j.ident.Load()
	mine := newHello(me, 0)
	mine.purpose = forMeeting
	j.note(0, "%s does not answer", conn.RemoteAddr())
	conn.SetDeadline(time.Now().Add(j.c.handshake))
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	return j.shake(ctx, conn, &mine, me.Token, conn.RemoteAddr().String(), true)
}

// awaitTable tells rank 0 the own card and waits for the table. nil: the join has failed. It owns conn.
func (j *joiner) awaitTable(ctx context.Context, conn net.Conn) (cards []card) {
	defer func() {
		if cards != nil {
			conn.Close() // else dismiss may still have a word for rank 0, and stop closes it
		}
	}()
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	payload, err := appendCard(nil, &j.me)
	if err == nil {
		var wire []byte
		if wire, err = appendFrame(nil, &frame{kind: kindCard, payload: payload}); err == nil {
			_, err = conn.Write(wire)
		}
	}
	conn.SetDeadline(time.Time{})
	j.mu.Lock()
	j.host = conn
	j.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	j.note(0, "it is there and waits for others")
	for err == nil {
		var f frame
		if f, err = readFrame(conn); err != nil {
			break
		}
		switch f.kind {
		case kindTable:
			if cards, err = decodeTable(f.payload, j.c.Size); err == nil {
				j.note(0, "")
				return cards
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
			return nil
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
	return nil
}
