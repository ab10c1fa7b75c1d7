// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"
)

// sameUser returns the pid of the other end, and an error if it is not of our user.
func sameUser(conn *net.UnixConn) (int, error) {
	pid, uid, err := peerCred(conn)
	if err != nil {
		return 0, err
	}
	if me := os.Geteuid(); uid != me {
		return pid, fmt.Errorf("pid %d has user id %d, accepted is %d", pid, uid, me)
	}
	return pid, nil
}

// accept serves the own address until the group ends. It stays after the join, so that a second process of this rank
// hears at once that it is late.
func (j *joiner) accept(ln net.Listener) {
	defer j.wg.Done()
	var p pause
	for {
		select {
		case j.slot <- struct{}{}: // strangers give slots back within Config.handshake
		case <-j.life.Done():
			return
		}
		conn, err := ln.Accept()
		if err != nil {
			<-j.slot
			if j.life.Err() != nil {
				return
			}
			// Out of descriptors, or a dialer that went away meanwhile: neither ends a job.
			j.c.Log.Debug("bootstrap: accept", "rank", j.c.Rank, "err", err)
			if !p.wait(j.life) {
				return
			}
			continue
		}
		p = pause{}
		j.wg.Add(1)
		go func() {
			defer j.wg.Done()
			defer func() { <-j.slot }()
			if !j.serve(conn) {
				conn.Close()
			}
		}()
	}
}

// serve shakes hands with whoever dialed. true: conn is a link now.
func (j *joiner) serve(conn net.Conn) bool {
	who, err := j.admit(conn)
	if err != nil {
		level := slog.LevelDebug // strangers must not be able to fill our log
		if j.refusedOne.CompareAndSwap(false, true) {
			level = slog.LevelWarn
		}
		j.c.Log.Log(j.life, level, "bootstrap: refuse connection", "rank", j.c.Rank, "err", err)
		return false
	}
	conn.SetDeadline(time.Now().Add(j.c.handshake))
	release := context.AfterFunc(j.life, func() {
		j.mu.Lock()
		joined := j.joined
		j.mu.Unlock()
		if joined {
			conn.Close()
		} else { // a rank in the middle of its handshake is to hear why the join has failed
			conn.SetDeadline(time.Now().Add(closeBound))
		}
	})
	defer release()
	me := j.ident.Load()
	mine := newHello(me, 0)
	peer, code, err := answerShake(conn, mine, me.Token, func(p hello) uint8 { return j.judge(&mine, &p) })
	from := int(peer.from)
	switch {
	case errors.Is(err, ErrToken):
		j.c.Log.Warn("bootstrap: refuse connection", "rank", j.c.Rank, "from", who, "claims", from, "err", err)
		j.note(from, "%s claimed it and was refused: %v", who, err)
		return false
	case err != nil:
		if code == codeAccept && peer.size != 0 {
			j.unclaim(&peer)
		}
		j.c.Log.Debug("bootstrap: drop connection", "rank", j.c.Rank, "from", who, "err", err)
		return false
	}
	if code != codeAccept {
		j.refused(&mine, &peer, code)
		return false
	}
	conn.SetDeadline(time.Time{})
	if peer.purpose == forMeeting {
		j.wg.Go(func() { j.seatRank(from, conn) }) // a goroutine of its own: it keeps no slot
		return true
	}
	if !release() || !j.m.attach(from, conn) {
		j.unclaim(&peer)
		return false
	}
	return true
}

// admit says who dialed, and whether it may: a process of our user on this host, or one of a host of this job.
func (j *joiner) admit(conn net.Conn) (string, error) {
	u, ok := conn.(*net.UnixConn)
	if ok {
		pid, err := sameUser(u)
		return fmt.Sprintf("pid %d", pid), err
	}
	who := conn.RemoteAddr().String()
	if !j.mayCome(conn.RemoteAddr()) {
		return who, fmt.Errorf("%s is not a host of this job", who)
	}
	return who, nil
}

// judge decides about a proven dialer. Accepting reserves its rank.
func (j *joiner) judge(mine, p *hello) uint8 {
	j.mu.Lock()
	defer j.mu.Unlock()
	from := int(p.from)
	switch {
	case from == j.c.Rank && j.joined:
		return codeJoined
	case from == j.c.Rank:
		return codeTaken
	case mismatch(mine, p, 0) != nil:
		return codeMismatch
	case j.joined:
		return codeJoined
	case p.purpose == forMeeting && (j.point == nil || j.c.Rank != 0):
		return codeMisplace
	case p.purpose == forMeeting && j.seats[from] != nil:
		return codeTaken
	case p.purpose == forMeeting:
		j.seats[from] = &seat{pid: int(p.pid)}
		return codeAccept
	case from < j.c.Rank:
		return codeMisplace
	case j.claimed[from]:
		return codeTaken
	}
	j.claimed[from] = true
	return codeAccept
}

func (j *joiner) unclaim(p *hello) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if p.purpose == forMeeting {
		delete(j.seats, int(p.from))
	} else {
		delete(j.claimed, int(p.from))
	}
}

// twice says which two processes came for one rank.
func (j *joiner) twice(p *hello) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	first := 0
	if s := j.seats[int(p.from)]; s != nil {
		first = s.pid
	}
	return fmt.Errorf("bootstrap: rank %d: join at %s: rank %d is claimed by two processes: pid %d and pid %d", j.c.Rank, j.c.Addr, p.from, first, p.pid)
}

// refused acts on a refusal that was sent. A join whose ranks differ cannot succeed; a group that is complete is not
// disturbed by who comes late.
func (j *joiner) refused(mine, p *hello, code uint8) {
	var err error
	switch code {
	case codeMismatch:
		err = mismatch(mine, p, int(p.pid))
	case codeTaken:
		if int(p.from) == j.c.Rank {
			err = &RankTakenError{Rank: j.c.Rank, Addr: j.c.Addr, PID: getpid(), Other: int(p.pid)}
		} else if p.purpose == forMeeting {
			err = j.twice(p)
		}
	}
	j.mu.Lock()
	joined := j.joined
	j.mu.Unlock()
	if err != nil && !joined {
		j.fail(err)
		return
	}
	j.c.Log.Warn("bootstrap: refuse rank", "rank", j.c.Rank, "claims", p.from, "pid", p.pid, "why", codeText(code, int(p.from)), "err", err)
}
