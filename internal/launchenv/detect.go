// SPDX-License-Identifier: Apache-2.0

package launchenv

import (
	"errors"
	"fmt"
	"strings"

	"github.com/doorbell-net/doorbell/internal/env"
)

// Names of launchers, as in Launch.Launcher.
const (
	Doorbell   = "doorbell"
	Torchrun   = "torchrun"
	Torch      = "torch"
	Slurm      = "slurm"
	OpenMPI    = "openmpi"
	PMI        = "pmi"
	Kubernetes = "kubernetes"
)

// Launch is who a process is.
type Launch struct {
	Launcher   string
	Rank, Size int
	LocalRank  int // among the ranks of this host; -1 if not known
	LocalSize  int // ranks of this host; 0 if not known
	// Addr is where the ranks meet: HOST:PORT, file:/path, or unix:... within one host. Empty only under "doorbell" without an
	// address, and then the caller must ask for one.
	Addr string
	// Derived says that Addr is made from the job's id, not given.
	Derived bool
	// Job keeps apart jobs that share an address; equal on all ranks. Empty if the launcher gives nothing to tell jobs apart.
	Job string
	// Set is the variables that decided, NAME=value each.
	Set []string
}

// String is one line that says which launcher won, and by what.
func (l Launch) String() string {
	s := "launcher: " + l.Launcher + " (" + strings.Join(l.Set, ", ") + ")"
	if l.Derived {
		s += ", meeting at " + l.Addr
	}
	return s
}

// ErrNone is wrapped by Detect's error when no launcher's set is complete: this process was started by none.
var ErrNone = errors.New("no launcher started this process")

// Detect reads the variables that launchers set and says who this process is. lookup nil is the process's environment.
//
// It wraps ErrNone where no set is complete, and says which were begun. Any other error is of a set that is complete but
// cannot be true: it names variable, value and what is accepted; another launcher is then not tried. It has no side
// effects and never blocks.
func Detect(lookup env.Lookup) (Launch, error) {
	r := newReader(lookup)
	for _, d := range []func(*reader) (Launch, bool, error){doorbell, torchrun, torch, slurm, openMPI, pmi, kubernetes} {
		l, ok, err := d(r)
		if err == nil && ok {
			err = l.finish(r)
		}
		if err != nil {
			return Launch{}, fmt.Errorf("detect launcher: %w", err)
		}
		if ok {
			return l, nil
		}
	}
	err := fmt.Errorf("detect launcher: %w: accepted are %s and %s, or those of torchrun, srun, mpirun, mpiexec, or an indexed Kubernetes job",
		ErrNone, env.Rank.Name(), env.WorldSize.Name())
	if len(r.begun) > 0 {
		err = fmt.Errorf("%w (seen: %s)", err, strings.Join(r.begun, "; "))
	}
	return Launch{}, err
}

// RankOf is Detect for who may also start the ranks itself: nil where no launcher started this process as one rank of
// several, which a job of one by another launcher is not either: a shell that srun gave looks so.
func RankOf(lookup env.Lookup) (*Launch, error) {
	l, err := Detect(lookup)
	switch {
	case errors.Is(err, ErrNone):
		return nil, nil
	case err != nil:
		return nil, err
	case l.Launcher != Doorbell && l.Size == 1:
		return nil, nil
	}
	return &l, nil
}

// finish puts in what DOORBELL_* variables say, and refuses what cannot be true.
func (l *Launch) finish(r *reader) error {
	if l.Launcher != Doorbell {
		if n, ok, err := r.own(env.WorldSize); err != nil {
			return err
		} else if ok && n != l.Size {
			return fmt.Errorf("%s=%d, but %s started %d ranks (%s): they must agree", env.WorldSize.Name(), n, l.Launcher, l.Size, strings.Join(l.Set, ", "))
		}
	}
	for _, v := range []struct {
		from env.Int
		to   *int
	}{{env.LocalRank, &l.LocalRank}, {env.LocalSize, &l.LocalSize}} {
		if n, ok, err := r.own(v.from); err != nil {
			return err
		} else if ok {
			*v.to = n
		}
	}
	set := strings.Join(l.Set, ", ")
	switch {
	case l.Size < 1:
		return fmt.Errorf("%s: %d ranks (accepted: at least 1)", set, l.Size)
	case l.Rank < 0 || l.Rank >= l.Size:
		return fmt.Errorf("%s: rank %d (accepted: 0 to %d)", set, l.Rank, l.Size-1)
	case l.LocalSize > l.Size:
		return fmt.Errorf("%s: %d of %d ranks on this host (accepted: at most %d)", set, l.LocalSize, l.Size, l.Size)
	case l.LocalSize > 0 && l.LocalRank >= l.LocalSize:
		return fmt.Errorf("%s: local rank %d (accepted: 0 to %d, since %d ranks are on this host)", set, l.LocalRank, l.LocalSize-1, l.LocalSize)
	}
	if v := r.get(env.Job.Name()); v != "" {
		l.Job = v
	}
	if v := r.get(env.Addr.Name()); v != "" {
		l.Addr, l.Derived = v, false
	}
	return nil
}

// reader reads variables, and remembers which sets were begun.
type reader struct {
	lookup env.Lookup
	begun  []string
}

func newReader(lookup env.Lookup) *reader {
	if lookup == nil {
		lookup = osLookup
	}
	return &reader{lookup: lookup}
}

// get returns a variable's value, "" if it is not set.
func (r *reader) get(name string) string {
	v, ok := r.lookup(name)
	if !ok {
		return ""
	}
	return strings.TrimSpace(v)
}

// incomplete notes a set that was begun, for the error of a process that has none.
func (r *reader) incomplete(format string, a ...any) (Launch, bool, error) {
	r.begun = append(r.begun, fmt.Sprintf(format, a...))
	return Launch{}, false, nil
}

// own reads one of our variables, which its declaration checks.
func (r *reader) own(v env.Int) (n int, ok bool, err error) {
	if !v.IsSet(r.lookup) {
		return 0, false, nil
	}
	n, err = v.Get(r.lookup)
	return n, err == nil, err
}
