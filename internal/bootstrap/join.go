// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// joinName is the all-gather that ends a join: who has passed it knows that every pair of ranks is connected.
const joinName = "bootstrap.join"

// Join makes this process rank c.Rank of a job and returns when all ranks are there and every pair is connected and
// proven (see Config.Token). Several ranks may join from one process.
//
// It blocks until then, at most until ctx ends, or c.Timeout if ctx has no deadline. When it fails it has released
// everything, and the ranks that it met fail at once with its reason. Strangers on its socket are dropped and disturb
// nothing.
//
// Errors: *JoinError (names the ranks that did not come; wraps the context's cause), *MismatchError, *RankTakenError,
// ErrToken, *DepartedError or *PeerLostError (a rank met gave up or died), or a refusal of c.
func Join(ctx context.Context, c Config) (Group, error) {
	start := time.Now()
	if err := c.check(); err != nil {
		return nil, err
	}
	c.setDefaults()
	var addr address
	var point *meetingPoint
	var err error
	open := "any process of this user can join"
	switch {
	case strings.HasPrefix(c.Addr, "unix:"):
		addr, err = parseAddr(c.Addr, c.Job, c.Size)
	case strings.HasPrefix(c.Addr, "file:"):
		point = &meetingPoint{}
		point.file, err = parsePlace(c.Addr)
	default:
		point, err = parseMeeting(c.Addr)
		open = "any host that reaches the address can join until the job is complete, any process of its hosts later"
	}
	if err != nil {
		return nil, fmt.Errorf("bootstrap: rank %d: join: %w", c.Rank, err)
	}
	ctx, cancel := bound(ctx, c.Timeout)
	defer cancel()
	if len(c.Token) == 0 && c.Rank == 0 && (point == nil || point.file == "") {
		c.Log.Warn("bootstrap: unauthenticated: no token, "+open, "job", c.Job, "addr", c.Addr)
	}
	j := newJoiner(c, addr, start)
	j.point = point
	if point != nil && point.file != "" {
		j.nonce = newNonce()
		j.ident.Store(attemptOf(&j.c, j.nonce)) // who has not read the file yet is of an attempt of its own
	}
	if err := j.start(ctx); err != nil {
		j.g.end(false, "")
		return nil, err
	}
	defer j.leavePlace()
	err = j.meet(ctx)
	if err == nil {
		j.m.d.start()
		err = j.confirm(ctx)
	}
	if err != nil {
		j.dismiss(err.Error())
		j.g.end(true, err.Error())
		return nil, err
	}
	return j.g, nil
}

// joiner holds what lives from Join to Close: the listener, and the goroutines that shake hands.
type joiner struct {
	c    Config
	addr address
	g    *group
	m    *mesh

	begun time.Time

	life context.Context // ends with the group
	kill context.CancelFunc
	lns  []net.Listener
	wg   sync.WaitGroup
	slot chan struct{} // bounds accepted sockets that are not proven yet

	refusedOne atomic.Bool // one warning was logged

	point  *meetingPoint          // nil: ranks meet by Unix sockets
	nonce  [32]byte               // of this rank's own record, where ranks meet by a file
	record *record                // rank 0's; nil: not written
	ident  atomic.Pointer[Config] // c, but job and token are of this attempt where ranks meet by a file

	me     card
	met    netip.AddrPort // where rank 0 answered; of meetAll and what it starts
	seated chan struct{}  // holds one token: seats changed

	mu      sync.Mutex
	joined  bool
	fatal   error
	claimed map[int]bool  // higher ranks that were accepted
	seats   map[int]*seat // rank 0 of a meeting by TCP
	host    net.Conn      // to rank 0, while we wait for the table
	// dismissed is why there will be no table, once that is known.
	dismissed string
	absent    rankSet // whom rank 0 waits for, as it told us; nil: not told, or all are there
	hosts     map[netip.Addr]bool
	notes     map[int]string  // of ranks that are not linked
	said      map[string]bool // what was logged once
}

func newJoiner(c Config, addr address, start time.Time) *joiner {
	j := &joiner{c: c, addr: addr, begun: start, slot: make(chan struct{}, 64), claimed: map[int]bool{}, notes: map[int]string{}, said: map[string]bool{},
		seats: map[int]*seat{}, seated: make(chan struct{}, 1)}
	j.ident.Store(&j.c)
	j.life, j.kill = context.WithCancel(context.Background())
	j.g = newGroup(c.Rank, c.Size, c.Timeout, c.Log)
	j.g.warnAfter = c.warnAfter
	j.m = &mesh{g: j.g, stop: j.stop, links: make([]*link, c.Size)}
	j.m.d = newDetector(j.g, j.m, c.Suspect)
	j.g.tr = j.m
	return j
}

// start claims the own address, then listens for higher ranks and dials lower ones.
func (j *joiner) start(ctx context.Context) error {
	var err error
	if j.point != nil {
		err = j.open(ctx)
	} else {
		err = j.claim(ctx)
	}
	if err != nil {
		return err
	}
	j.m.spawn(j.m.d.beat)
	j.wg.Add(len(j.lns))
	for _, ln := range j.lns {
		go j.accept(ln)
	}
	if j.point != nil {
		j.wg.Add(1)
		go j.meetAll(ctx)
		return nil
	}
	j.wg.Add(j.c.Rank)
	for r := range j.c.Rank {
		go j.dial(ctx, r)
	}
	return nil
}

// stop ends listener and handshakes; links are the mesh's to end.
func (j *joiner) stop() {
	j.kill()
	closeListeners(j.lns)
	j.mu.Lock()
	if j.host != nil {
		j.host.Close()
	}
	j.mu.Unlock()
	j.wg.Wait()
}

func (j *joiner) fail(err error) {
	j.mu.Lock()
	if j.fatal == nil {
		j.fatal = err
	}
	j.mu.Unlock()
	j.g.poke()
}

func (j *joiner) note(rank int, format string, a ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if format == "" {
		delete(j.notes, rank)
		return
	}
	j.notes[rank] = fmt.Sprintf("rank %d: ", rank) + fmt.Sprintf(format, a...)
}

// once logs a warning unless it has logged one with this key.
func (j *joiner) once(key, msg string, args ...any) {
	j.mu.Lock()
	again := j.said[key]
	j.said[key] = true
	j.mu.Unlock()
	if !again {
		j.c.Log.Warn(msg, args...)
	}
}

// meet waits until every rank is linked.
func (j *joiner) meet(ctx context.Context) error {
	warn := time.NewTimer(j.c.warnAfter)
	defer warn.Stop()
	for {
		missing, err := j.state()
		if err != nil {
			if n := j.notesOf(missing); len(n) > 0 {
				err = fmt.Errorf("%w (%s)", err, strings.Join(n, "; "))
			}
			return err
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-j.g.wake:
		case <-warn.C:
			j.c.Log.Warn("bootstrap: join waits", "rank", j.c.Rank, "for", ranks(missing), "at", j.c.Addr, "since", span(time.Since(j.begun)),
				"seen", strings.Join(j.notesOf(missing), "; "))
		case <-ctx.Done():
			if now, err := j.state(); err == nil && len(now) > 0 {
				missing = now // rank 0 told more
			}
			return &JoinError{Rank: j.c.Rank, Size: j.c.Size, Addr: j.c.Addr, Missing: missing, Notes: j.notesOf(missing),
				Waited: time.Since(j.begun), Err: context.Cause(ctx)}
		}
	}
}

func (j *joiner) notesOf(rank []int) (notes []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range rank {
		if n, ok := j.notes[r]; ok {
			notes = append(notes, n)
		}
	}
	return notes
}

// state returns the ranks that are not linked, and why the join cannot succeed any more, if so.
func (j *joiner) state() (missing []int, err error) {
	j.mu.Lock()
	err = j.fatal
	absent := j.absent
	j.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !absent.empty() {
		return absent.list(), nil
	}
	j.g.mu.Lock()
	defer j.g.mu.Unlock()
	for r := range j.g.peers {
		switch p := &j.g.peers[r]; {
		case r == j.c.Rank:
		case p.departed != nil && err == nil:
			err = fmt.Errorf("bootstrap: rank %d: join: %w", j.c.Rank, p.departed)
		case p.lost != nil && err == nil:
			err = fmt.Errorf("bootstrap: rank %d: join: %w", j.c.Rank, &PeerLostError{Rank: r, Cause: p.lost})
		case !p.linked:
			missing = append(missing, r)
		}
	}
	return missing, err
}

// confirm makes sure that all ranks are as far, and learns their boot ids.
func (j *joiner) confirm(ctx context.Context) error {
	all, err := j.g.AllGather(ctx, joinName, Blob{Bytes: []byte(j.c.bootID)})
	if err != nil {
		return err
	}
	j.mu.Lock()
	late := j.fatal
	j.joined = true
	j.mu.Unlock()
	if late != nil {
		// It was refused and knows so. The ranks that belong here are complete.
		j.c.Log.Warn("bootstrap: refused while the group became complete", "rank", j.c.Rank, "err", late)
	}
	j.g.mu.Lock()
	defer j.g.mu.Unlock()
	for r := range all {
		closeAll(all[r].FDs) // none was asked for
		j.g.peers[r].bootID = string(all[r].Bytes)
	}
	j.g.ident = j.ident.Load()
	return nil
}

// pause waits between attempts: 1 ms at first, doubling. Nothing tells a dialer that somebody listens now.
type pause struct {
	d    time.Duration
	most time.Duration // instead of 50 ms
}

func (p *pause) wait(ctx context.Context) bool {
	most := p.most
	if most == 0 {
		most = 50 * time.Millisecond
	}
	p.d = min(max(2*p.d, time.Millisecond), most)
	t := time.NewTimer(p.d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// claim binds the own rank's address. If another process has it, that process and this one are made to know of each
// other.
func (j *joiner) claim(ctx context.Context) error {
	name := j.addr.of(j.c.Rank)
	var p pause
	var why error // what was seen last, before ctx ended
	for {
		ln, err := listen(ctx, name)
		if err == nil {
			j.lns = append(j.lns, ln)
			return nil
		}
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			again, err := j.confront(ctx, name)
			if !again && ctx.Err() == nil {
				return err
			}
			if why == nil || ctx.Err() == nil && !outOfTime(err) {
				why = err
			}
		case errors.Is(err, errBusy):
			why = err
		default:
			return fmt.Errorf("bootstrap: rank %d: join: listen at %s: %w", j.c.Rank, name, err)
		}
		if !p.wait(ctx) {
			return fmt.Errorf("bootstrap: rank %d: join: waited %s to listen at %s: %w (%w)", j.c.Rank, span(time.Since(j.begun)), name, why, context.Cause(ctx))
		}
	}
}

// confront asks the process that has our rank's address who it is. again: it may be gone now.
func (j *joiner) confront(ctx context.Context, name string) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, j.c.handshake)
	defer cancel()
	conn, err := dialUnix(ctx, name)
	if err != nil {
		return notYet(err), fmt.Errorf("bootstrap: rank %d: join: address %s is in use: %w", j.c.Rank, name, err)
	}
	defer conn.Close()
	pid, err := sameUser(conn)
	if err != nil {
		return false, fmt.Errorf("bootstrap: rank %d: join: address %s is in use: %w", j.c.Rank, name, err)
	}
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	me := j.ident.Load()
	mine := newHello(me, j.c.Rank)
	peer, code, err := dialShake(conn, &mine, me.Token)
	var alien *strangerError
	switch {
	case errors.As(err, &alien):
		// It may be a rank that is just ending; a process that holds on is met again until the deadline.
		return true, fmt.Errorf("bootstrap: rank %d: join: address %s is in use by pid %d: %w", j.c.Rank, name, pid, err)
	case err != nil:
		return false, fmt.Errorf("bootstrap: rank %d: join: address %s is in use by pid %d: %w", j.c.Rank, name, pid, err)
	}
	return false, &RankTakenError{Rank: j.c.Rank, Addr: j.c.Addr, PID: getpid(), Other: int(peer.pid), Joined: code == codeJoined}
}

// dial connects to a lower rank, however often that takes.
func (j *joiner) dial(ctx context.Context, rank int) {
	defer j.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(j.life, cancel)()
	var p pause
	for {
		conn, err := dialUnix(ctx, j.addr.of(rank))
		switch {
		case err == nil:
			if j.call(ctx, rank, conn) {
				return
			}
		case outOfTime(err): // what was seen before tells more
		case notYet(err):
			j.note(rank, "")
		case ctx.Err() == nil:
			j.fail(fmt.Errorf("bootstrap: rank %d: join: dial rank %d: %w", j.c.Rank, rank, err))
			return
		}
		if !p.wait(ctx) {
			return
		}
	}
}

// call shakes hands over conn, which it owns. true: done, for better or worse.
func (j *joiner) call(ctx context.Context, rank int, conn net.Conn) bool {
	keep := false
	defer func() {
		if !keep {
			conn.Close()
		}
	}()
	who := conn.RemoteAddr().String()
	u, ok := conn.(*net.UnixConn)
	if ok {
		pid, err := sameUser(u)
		if err != nil {
			j.note(rank, "its address is held by another process: %v", err)
			return false
		}
		who = fmt.Sprintf("pid %d", pid)
	} else {
		conn.SetDeadline(time.Now().Add(j.c.handshake)) // there are other addresses to try
	}
	release := context.AfterFunc(ctx, func() { conn.Close() })
	defer release()
	me := j.ident.Load()
	mine := newHello(me, rank)
	if len(j.notesOf([]int{rank})) == 0 { // what came of an attempt before tells more
		j.note(rank, "%s at its address does not answer", who)
	}
	if !j.shake(ctx, conn, &mine, me.Token, who, ok) {
		return j.failed()
	}
	conn.SetDeadline(time.Time{})
	if !release() {
		return true // ctx has ended and closed conn
	}
	keep = j.m.attach(rank, conn)
	return true
}

// shake proves both ends. false: the join has failed, or this was not the rank meant and another attempt may find it.
// sure: nobody but that rank can be there, so a wrong token is final.
func (j *joiner) shake(ctx context.Context, conn net.Conn, mine *hello, token []byte, who string, sure bool) bool {
	rank := int(mine.to)
	peer, code, err := dialShake(conn, mine, token)
	switch {
	case errors.Is(err, ErrToken) && sure:
		j.fail(fmt.Errorf("bootstrap: rank %d: join: authenticate with rank %d (%s): %w", j.c.Rank, rank, who, err))
		return false
	case err != nil:
		if ctx.Err() == nil {
			j.note(rank, "%s at its address: %v", who, err)
		}
		return false
	}
	if err := mismatch(mine, &peer, int(peer.pid)); err != nil {
		j.fail(err)
		return false
	}
	if code != codeAccept {
		j.fail(fmt.Errorf("bootstrap: rank %d: join: rank %d (pid %d) refuses: %s", j.c.Rank, rank, peer.pid, codeText(code, j.c.Rank)))
		return false
	}
	return true
}

// completeAlready says what is accepted in place of a rank that comes late, or again: what ranks share, and have agreed on, knows
// nothing of it.
const completeAlready = "a group that is complete already, which no rank joins late or again; accepted is a job started anew: another job id, or this one when all of its ranks have ended"

func codeText(code uint8, rank int) string {
	switch code {
	case codeTaken:
		return fmt.Sprintf("rank %d is claimed by another process too", rank)
	case codeJoined:
		return "it is in " + completeAlready
	}
	return fmt.Sprintf("rank %d is not to dial it (code %d)", rank, code)
}
