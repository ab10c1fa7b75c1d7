// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"
)

// publish is how rank 0, which listens by now, puts its record into the rendezvous file. A record that nobody stands
// behind is told of and replaced; while one names a living rank 0 of another job, it waits for that one to be through.
func (j *joiner) publish(ctx context.Context) error {
	path, trust := j.point.file, len(j.c.Token) == 0
	mine := &record{nonce: j.nonce, ranks: j.c.Size, pid: getpid(), host: thisHost(), written: time.Now().UTC().Truncate(time.Second), at: j.me.at()}
	me := j.ident.Load()
	mine.job = newHello(me, 0).job
	p := pause{most: placePause}
	told := false
	for {
		old, err := readRecord(ctx, path, false)
		if err == nil && old.nonce == j.nonce && trust { // others will refuse what is not private
			old, err = readRecord(ctx, path, true)
		}
		write := false
		switch {
		case err == nil && old.nonce == j.nonce:
			j.record = mine
			return nil
		case err == nil:
			pid, lives := old.listens(ctx, me)
			if lives && old.of(&j.c) {
				return &RankTakenError{Rank: 0, Addr: j.c.Addr, PID: getpid(), Other: pid}
			}
			if !told {
				j.c.Log.Warn("bootstrap: rendezvous file of another job", "rank", 0, "file", path, "record", old.String(), "same job id", old.of(&j.c), "its rank 0 lives", lives)
			}
			told, write = true, !lives
		case errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errPlace): // not that of its folder
			write = true
		case errors.Is(err, errDamaged):
			j.c.Log.Warn("bootstrap: rendezvous file is replaced", "rank", 0, "file", path, "err", err)
			write = true
		default:
			return j.placeErr(err)
		}
		if write {
			if err := writeRecord(ctx, path, mine); err != nil {
				return j.placeErr(err)
			}
			continue // and look whether it is there: two may write at once
		}
		if !p.wait(ctx) {
			return fmt.Errorf("bootstrap: rank 0: join: waited %s for the rendezvous file %s: another job still gathers its ranks there (%s): accepted is a file for each job: %w",
				span(time.Since(j.begun)), path, old, context.Cause(ctx))
		}
	}
}

func (j *joiner) placeErr(err error) error {
	return fmt.Errorf("bootstrap: rank %d: join at %s: %w", j.c.Rank, j.point, err)
}

// keepRecord looks after rank 0's record until ctx ends: one that went, with a cleaner or with an earlier job that took
// its own away, is written again; one that was replaced ends the join, for the ranks to come go elsewhere.
func (j *joiner) keepRecord(ctx context.Context) {
	t := time.NewTicker(placeWatch)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		now, err := readRecord(ctx, j.point.file, false)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && now.nonce == j.nonce:
		case err == nil:
			who := "another job"
			if now.of(&j.c) {
				who = "another rank 0 of this job"
			}
			j.fail(fmt.Errorf("bootstrap: rank 0: join at %s: %s has taken the rendezvous file (%s): accepted is a file for each job", j.point, who, now))
			return
		case !errors.Is(err, errPlace) && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged)):
			j.c.Log.Warn("bootstrap: rendezvous file is written again", "rank", 0, "file", j.point.file, "err", err)
			if err := writeRecord(ctx, j.point.file, j.record); err != nil && ctx.Err() == nil {
				j.c.Log.Warn("bootstrap: write rendezvous file", "rank", 0, "file", j.point.file, "err", err)
			}
		default:
			j.c.Log.Warn("bootstrap: read rendezvous file", "rank", 0, "file", j.point.file, "err", err)
		}
	}
}

// leavePlace takes rank 0's record away: all ranks have met, or none will.
func (j *joiner) leavePlace() {
	if j.record == nil {
		return
	}
	if err := removeRecord(j.point.file, j.nonce); err != nil {
		j.c.Log.Warn("bootstrap: remove rendezvous file", "rank", 0, "file", j.point.file, "err", err)
	}
}

// readPlace is the record of this job in the rendezvous file; nil: there is none yet. From there on this rank's
// proofs are of that attempt. What is seen is noted, for the error of a join that ends.
func (j *joiner) readPlace(ctx context.Context) *record {
	r, err := readRecord(ctx, j.point.file, len(j.c.Token) == 0)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errPlace):
		j.note(0, "the rendezvous file %s is not there yet: rank 0 has not come, or this host does not see its storage", j.point.file)
	case errors.Is(err, errPlace):
		j.fail(j.placeErr(err))
	case err != nil:
		j.note(0, "%v", err)
	case !r.of(&j.c):
		j.note(0, "the rendezvous file %s is of another job (%s); this one's rank 0 has not come", j.point.file, r)
		j.once("another", "bootstrap: rendezvous file of another job: waiting for this job's", "rank", j.c.Rank, "file", j.point.file, "record", r.String())
	default:
		j.ident.Store(attemptOf(&j.c, r.nonce))
		return r
	}
	return nil
}

// stale tells that nobody behind a record answered as rank 0.
func (j *joiner) stale(r *record) {
	why := "nobody answers"
	if n := j.notesOf([]int{0}); len(n) > 0 {
		why = strings.TrimPrefix(n[0], "rank 0: ")
	}
	j.once(fmt.Sprintf("stale %x", r.nonce), "bootstrap: rendezvous file leads to nobody: waiting for rank 0 to replace it",
		"rank", j.c.Rank, "file", j.point.file, "record", r.String(), "err", why)
	j.note(0, "%s; the rendezvous file %s (%s) may be an earlier run's, which rank 0 replaces when it comes", why, j.point.file, r)
}
