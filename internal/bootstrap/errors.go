// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrClosed is returned by calls on a group that was closed or killed.
var ErrClosed = errors.New("group is closed")

// ErrKilled is the cause of a loss made by Kill in a Local group.
var ErrKilled = errors.New("killed")

// ErrNoGoodbye is the cause of a loss seen as the end of the control socket.
var ErrNoGoodbye = errors.New("control socket ended without goodbye")

// ErrSilent is the cause of a loss seen as silence for longer than Config.Suspect.
var ErrSilent = errors.New("silent")

// ErrExpelled is the cause of a loss that this rank's call of Expel has made, in a Local group another one's too.
var ErrExpelled = errors.New("expelled")

// ErrAgreed is the cause of a loss that this rank did not see itself: the others found it, and all agreed.
var ErrAgreed = errors.New("other ranks saw its end, do not hear it or want it out, and all agreed")

// ErrCutOff is the cause of every loss on a rank that has stopped: it does not reach the majority, or the majority has
// agreed that it is lost. The others may go on without it; it must not.
var ErrCutOff = errors.New("this rank is cut off and has stopped")

// PeerLostError says that a rank is lost: it will not come back.
type PeerLostError struct {
	Rank  int
	Cause error
}

func (e *PeerLostError) Error() string { return fmt.Sprintf("rank %d is lost: %v", e.Rank, e.Cause) }

// Unwrap returns the cause.
func (e *PeerLostError) Unwrap() error { return e.Cause }

// DepartedError says that a rank has left with a goodbye. Reason is empty for a plain Close.
type DepartedError struct {
	Rank   int
	Reason string
}

func (e *DepartedError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("rank %d has departed", e.Rank)
	}
	return fmt.Sprintf("rank %d has departed: %s", e.Rank, e.Reason)
}

// NameError says that two ranks are in all-gathers of different names at the same place of the sequence.
type NameError struct {
	Seq      uint64 // place in the sequence of all-gathers, from 0 (Join's own)
	Rank     int    // this rank
	Name     string
	Peer     int // the other
	PeerName string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("all-gather %d: rank %d called %q, rank %d called %q", e.Seq, e.Rank, e.Name, e.Peer, e.PeerName)
}

// RemoteError says that a rank entered an all-gather but could not contribute.
type RemoteError struct {
	Rank int
	Text string
}

func (e *RemoteError) Error() string {
	return fmt.Sprintf("rank %d could not contribute: %s", e.Rank, e.Text)
}

// TimeoutError says that an all-gather ended before the ranks in Missing contributed.
type TimeoutError struct {
	Missing []int
	Size    int
	Waited  time.Duration
	Err     error // the context's cause
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("waited %s for %s (of %d): %v", span(e.Waited), ranks(e.Missing), e.Size, e.Err)
}

// Unwrap returns the context's cause: context.DeadlineExceeded for a timeout.
func (e *TimeoutError) Unwrap() error { return e.Err }

// JoinError says that a join ended before the ranks in Missing came.
type JoinError struct {
	Rank, Size int
	Addr       string
	Missing    []int
	Waited     time.Duration
	Notes      []string // what was seen of the missing ranks, if anything
	Err        error    // the context's cause
}

func (e *JoinError) Error() string {
	s := fmt.Sprintf("bootstrap: rank %d: waited %s for %s (of %d) at %s: not there", e.Rank, span(e.Waited), ranks(e.Missing), e.Size, e.Addr)
	if len(e.Notes) > 0 {
		s += " (" + strings.Join(e.Notes, "; ") + ")"
	}
	return s
}

// Unwrap returns the context's cause: context.DeadlineExceeded for a timeout.
func (e *JoinError) Unwrap() error { return e.Err }

// RankTakenError says that two processes claim one rank.
type RankTakenError struct {
	Rank       int
	Addr       string
	PID, Other int  // this process and the other
	Joined     bool // the other's group was complete already
}

func (e *RankTakenError) Error() string {
	how := "is claimed by two processes"
	if e.Joined {
		how = "is taken in " + completeAlready
	}
	return fmt.Sprintf("bootstrap: rank %d: join at %s: rank %d %s: pid %d (this one) and pid %d", e.Rank, e.Addr, e.Rank, how, e.PID, e.Other)
}

// MismatchError says that two ranks differ in what must be equal on all.
type MismatchError struct {
	What    string
	Rank    int
	Mine    string
	Peer    int
	Theirs  string
	PeerPID int
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("bootstrap: rank %d: join: %s differs: rank %d has %s, rank %d (pid %d) has %s", e.Rank, e.What, e.Rank, e.Mine, e.Peer, e.PeerPID, e.Theirs)
}

// ErrToken is wrapped by a join's error when the other end has another token.
var ErrToken = errors.New("token differs")

// ranks writes "rank 2" or "ranks 2, 3", a long list shortened.
func ranks(r []int) string {
	const most = 16
	if len(r) == 1 {
		return "rank " + strconv.Itoa(r[0])
	}
	var b strings.Builder
	b.WriteString("ranks ")
	for i, x := range r {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(r)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(x))
	}
	return b.String()
}

// span rounds a duration to what a reader needs.
func span(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}
