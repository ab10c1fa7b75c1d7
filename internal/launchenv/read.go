// SPDX-License-Identifier: Apache-2.0

package launchenv

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/doorbell-net/doorbell/internal/env"
)

func osLookup(name string) (string, bool) { return os.LookupEnv(name) }

// number reads a whole number in lo..2^31-1, with nothing around it.
func (r *reader) number(name string, lo int) (int, error) {
	s := r.get(name)
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > math.MaxInt32 || int(n) < lo {
		return 0, fmt.Errorf("%s=%q: accepted is a whole number from %d to %d", name, s, lo, math.MaxInt32)
	}
	return int(n), nil
}

// first is the first of the names that has a value, "" if none has.
func (r *reader) first(names ...string) string {
	for _, n := range names {
		if r.get(n) != "" {
			return n
		}
	}
	return ""
}

// ranks reads a rank and a size, both of which are set.
func (r *reader) ranks(l *Launch, rank, size string) (err error) {
	if l.Rank, err = r.number(rank, 0); err != nil {
		return err
	}
	if l.Size, err = r.number(size, 1); err != nil {
		return err
	}
	l.show(r, rank, size)
	return nil
}

// local reads rank and size within the host; each may be missing, or its name be "".
func (r *reader) local(l *Launch, rank, size string) (err error) {
	if rank != "" && r.get(rank) != "" {
		if l.LocalRank, err = r.number(rank, 0); err != nil {
			return err
		}
	}
	if size != "" && r.get(size) != "" {
		l.LocalSize, err = r.number(size, 1)
	}
	return err
}

// show adds variables to those that decided.
func (l *Launch) show(r *reader, names ...string) {
	for _, n := range names {
		if v := r.get(n); v != "" {
			l.Set = append(l.Set, n+"="+printable(v))
		}
	}
}

// printable shortens a value and takes out what would break a line.
func printable(s string) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == '\uFFFD' {
			return '?'
		}
		return c
	}, s)
	if len(s) > 80 {
		return s[:60] + "..."
	}
	return s
}

// address is where ranks meet that were given none. On one host it is a Unix address that the job's id makes; across
// hosts a port of the first host, which the job's id makes too.
//
// The port is never that which the launcher names for itself (MASTER_PORT): its own store listens there. It is from
// 18000 to 26191, above what services use and below what kernels give to clients. Two jobs that come to the same port of
// one host are told apart by their id; the second finds the port taken.
func (l *Launch) address(r *reader, host string) error {
	switch given := r.get(env.Addr.Name()); {
	case given != "":
		return nil // finish takes it
	case l.oneHost():
		if l.Job == "" && r.get(env.Job.Name()) == "" {
			return fmt.Errorf("%s says nothing that tells this job from another of this host: set %s to a text of your own, or %s, the same for all ranks",
				l.Launcher, env.Job.Name(), env.Addr.Name())
		}
		l.Addr = unixAddr(l.id(r))
	default:
		sum := sha256.Sum256([]byte("doorbell port\x00" + l.id(r)))
		l.Addr = net.JoinHostPort(host, strconv.Itoa(18000+int(binary.LittleEndian.Uint16(sum[:])%8192)))
	}
	l.Derived = true
	return nil
}

// id is the job's id, as it will be once DOORBELL_JOB has been taken into account.
func (l *Launch) id(r *reader) string {
	if v := r.get(env.Job.Name()); v != "" {
		return v
	}
	return l.Job
}

func (l *Launch) oneHost() bool { return l.Size == 1 || l.LocalSize == l.Size }

// unixAddr is an address within this host. Its length does not depend on the job's id, whose text may be anything.
func unixAddr(job string) string {
	sum := sha256.Sum256([]byte("doorbell unix\x00" + job))
	name := "doorbell-" + hex.EncodeToString(sum[:8])
	if runtime.GOOS == "linux" {
		return "unix:@" + name
	}
	return "unix:" + filepath.Join(os.TempDir(), name)
}

// mustBeGiven is the error of a launcher that tells no rank where another host is.
func mustBeGiven(l *Launch, how string) error {
	return fmt.Errorf("%s started %d ranks on several hosts (%s) and tells none where another is: across hosts give %s=HOST:PORT, with the name of rank 0's host and a port that is free there, or %s=file:/path on storage that all hosts share; the same for all ranks%s",
		l.Launcher, l.Size, strings.Join(l.Set, ", "), env.Addr.Name(), env.Addr.Name(), how)
}
