// SPDX-License-Identifier: Apache-2.0

// Package launch starts the ranks of one job, or one host's share of them, as processes of this host, and sees to it that
// they end together.
package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// Exit codes of Run, which are those of the command line.
const (
	ExitOK          = 0
	ExitFailed      = 1 // a rank failed, or the job was cancelled
	ExitUsage       = 2 // the request makes no sense, or the program can't be started
	ExitUnavailable = 3 // this build or machine can't do it
)

// MaxRanks is the largest number of ranks that one host starts.
const MaxRanks = 4096

// DefaultGrace is the time between SIGTERM and SIGKILL.
const DefaultGrace = 5 * time.Second

// Options describe a job. N and Program are needed; everything else has a useful zero value.
type Options struct {
	N       int      // ranks in the world
	Program string   // a path, or a name to be looked up in PATH
	Args    []string // without the program itself
	Env     []string // KEY=VALUE, over this process's environment

	// Hosts: each starts N/Nodes ranks, host I those from I*N/Nodes on. With more than one, Rendezvous and a token are needed.
	Nodes      int    // 0 and 1 mean this one
	NodeRank   int    // which of them this is, from 0
	Rendezvous string // HOST:PORT, where rank 0 listens, or file:/path on storage that all hosts share
	Job        string // equal on all hosts; empty: made from port or path and token, or for one host at random

	TokenFile    string // holds the job's secret; empty: DOORBELL_TOKEN, DOORBELL_TOKEN_FILE, or for one host a new secret
	RanksPerNode int    // size of a virtual node; 0: not cut
	Net          string // these four are passed on when set
	Backend      string
	Device       string
	Progress     string

	Stdin     *os.File  // of rank 0; nil: empty. Other ranks always have an empty one
	Stdout    io.Writer // nil: os.Stdout
	Stderr    io.Writer // nil: os.Stderr
	RawStdout io.Writer // when set, gets rank 0's stdout byte for byte, without prefix
	RawStderr *os.File  // when set, is rank 0's stderr itself: a terminal stays one

	Grace  time.Duration // between SIGTERM and SIGKILL; 0: DefaultGrace
	Linger time.Duration // that the others may live on after the first failure, to tell what they saw; 0: none
	Name   string        // head of our own lines on stderr; empty: "doorbell run"
}

// RankError says which rank failed first, and why. Run has already written it to stderr.
type RankError struct {
	Rank, Pid int
	Code      int            // exit status; -1 if a signal ended it
	Signal    syscall.Signal // that ended it, or 0
	CoreDump  bool
	After     time.Duration // since its start
	Detail    string        // last line on its stderr that began with "doorbell"; empty if there was none
}

func (e *RankError) Error() string {
	s := fmt.Sprintf("rank %d (pid %d): ", e.Rank, e.Pid)
	if e.Signal != 0 {
		s += fmt.Sprintf("killed by signal %d (%s)", int(e.Signal), e.Signal)
		if e.CoreDump {
			s += " (core dumped)"
		}
	} else {
		s += fmt.Sprintf("exit status %d", e.Code)
	}
	s += " after " + seconds(e.After)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// seconds writes a duration with one decimal, or whole milliseconds below a tenth of a second.
func seconds(d time.Duration) string {
	if d < 100*time.Millisecond {
		return fmt.Sprintf("%dms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}

// check fills in defaults and refuses what can't be. Its error comes with the exit code.
func (o *Options) check() (int, error) {
	switch {
	case o.N < 1 || o.N > MaxRanks:
		return ExitUsage, fmt.Errorf("%d ranks asked for, 1 to %d are accepted", o.N, MaxRanks)
	case o.RanksPerNode < 0:
		return ExitUsage, fmt.Errorf("%d ranks per node asked for, at least 1 is needed", o.RanksPerNode)
	case o.Program == "":
		return ExitUsage, errors.New("no program given")
	case strings.ContainsFunc(o.Job, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return ExitUsage, fmt.Errorf("job id %q: accepted is a text without spaces", o.Job)
	}
	if err := o.checkHosts(); err != nil {
		return ExitUsage, err
	}
	if o.RanksPerNode > 0 && o.share()%o.RanksPerNode != 0 {
		return ExitUsage, fmt.Errorf("%d ranks are no multiple of %d ranks per node", o.share(), o.RanksPerNode)
	}
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	if o.Name == "" {
		o.Name = "doorbell run"
	}
	if o.Nodes > 1 {
		o.Name += fmt.Sprintf(": node %d", o.NodeRank)
	}
	return ExitOK, nil
}
