// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fileConfigs are ranks that meet by a file, each of a host of its own and without a token.
func fileConfigs(t testing.TB, n int, edit func(*Config)) ([]Config, string) {
	path := filepath.Join(t.TempDir(), "meet")
	return configs(n, func(c *Config) {
		c.Addr, c.Token, c.bootID = "file:"+path, nil, fmt.Sprint("host ", c.Rank)
		if edit != nil {
			edit(c)
		}
	}), path
}

// tell is a log whose lines can be read.
func tell(lines chan string) *slog.Logger {
	return slog.New(slog.NewTextHandler(lineWriter(lines), nil))
}

func drain(lines chan string) (all string) {
	for {
		select {
		case l := <-lines:
			all += l
		default:
			return all
		}
	}
}

func gone(t *testing.T, path string) {
	t.Helper()
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Ranks that share nothing but a folder meet, whoever comes first, with a token or without, and leave nothing.
func TestFileMeeting(t *testing.T) {
	for _, token := range []string{"", "secret"} {
		checkLeaks(t)
		lines := make(chan string, 64)
		cs, path := fileConfigs(t, 3, func(c *Config) { c.Token, c.Log = []byte(token), tell(lines) })
		late := make(chan struct{})
		var g0 Group
		var err0 error
		go func() { // rank 0 comes last, and the others see how a file comes
			defer close(late)
			time.Sleep(30 * time.Millisecond) // sleep: so that they look too early; either order is right
			g0, err0 = Join(t.Context(), cs[0])
		}()
		gs, errs := joinAll(t.Context(), cs[1:])
		<-late
		if err := errors.Join(append(errs, err0)...); err != nil {
			t.Fatal(err)
		}
		gs = append(gs, g0)
		each(gs, func(g Group) {
			if all, err := g.AllGather(t.Context(), "x", Blob{Bytes: []byte{byte(g.Rank())}}); err != nil || len(all) != 3 || all[2].Bytes[0] != 2 {
				t.Errorf("%v, %v", all, err)
			}
		})
		gone(t, path)
		if l := drain(lines); strings.Contains(l, "unauthenticated") {
			t.Errorf("a file is a secret: %s", l)
		}
		if a, err := AuthOf(g0); err != nil || len(a.c.Token) == 0 || a.c.Job == "job" {
			t.Errorf("data sockets do not have the attempt's secret: %v", err)
		}
		closeGroups(gs)
	}
}

// A file that an earlier run left behind is told of and replaced, whether nobody listens there, somebody else does, or
// another attempt of the same job; and ranks that read it before rank 0 came still meet.
func TestFileStale(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() { // somebody else, who says nothing and keeps the socket
		for {
			if _, err := ln.Accept(); err != nil {
				return
			}
		}
	}()
	dead := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(freePort(t)))
	other := netip.MustParseAddrPort(ln.Addr().String())
	for name, c := range map[string]struct {
		job  string
		at   netip.AddrPort
		text string // instead of a record
		logs []string
	}{
		"an earlier run":        {job: "job", at: dead, logs: []string{"of another job", `"same job id"=true`, "leads to nobody"}},
		"its port is another's": {job: "job", at: other, logs: []string{"of another job", `"its rank 0 lives"=false`}},
		"of another job":        {job: "other", at: dead, logs: []string{`"same job id"=false`, "waiting for this job's"}},
		"cut short":             {text: recordHead + "job 12", logs: []string{"damaged"}},
		"empty":                 {text: " "},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			lines := make(chan string, 256)
			cs, path := fileConfigs(t, 2, func(c *Config) { c.Log, c.handshake = tell(lines), 300*time.Millisecond })
			old := &record{nonce: newNonce(), ranks: 2, pid: 77, host: "old", written: time.Unix(1e9, 0).UTC(), at: []netip.AddrPort{c.at}}
			text := []byte(strings.TrimSpace(c.text))
			if c.text == "" {
				owner := cs[0]
				owner.Job = c.job
				old.job = newHello(attemptOf(&owner, old.nonce), 0).job
				text = old.encode()
			}
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			one := make(chan error, 1)
			var g1 Group
			go func() {
				var err error
				g1, err = Join(t.Context(), cs[1])
				one <- err
			}()
			for _, w := range c.logs { // rank 1 has followed the old file, before rank 0 comes
				if strings.Contains(w, "leads") || strings.Contains(w, "waiting for this") {
					if l := <-lines; !strings.Contains(l, w) || !strings.Contains(l, "pid 77 on host old") {
						t.Errorf("logged %q, want %q", l, w)
					}
				}
			}
			g0, err0 := Join(t.Context(), cs[0])
			if err := errors.Join(err0, <-one); err != nil {
				t.Fatal(err)
			}
			l := drain(lines)
			for _, w := range c.logs {
				if !strings.Contains(w, "leads") && !strings.Contains(w, "waiting for this") && !strings.Contains(l, w) {
					t.Errorf("logged %q, want %q", l, w)
				}
			}
			gone(t, path)
			closeGroups([]Group{g0, g1})
		})
	}
}

// What waiting does not mend ends the join at once, and says what is accepted.
func TestFileRefused(t *testing.T) {
	note := []byte("the only copy of something dear\n")
	for name, c := range map[string]struct {
		rank int
		make func(t *testing.T, path string) error
		want string
	}{
		"no folder, rank 0": {0, func(_ *testing.T, p string) error { return os.Remove(filepath.Dir(p)) }, "no such file or directory"},
		"no folder, rank 1": {1, func(_ *testing.T, p string) error { return os.Remove(filepath.Dir(p)) }, "folder: open"},
		"something else, 0": {0, func(_ *testing.T, p string) error { return os.WriteFile(p, note, 0o600) }, "it is left alone"},
		"something else, 1": {1, func(_ *testing.T, p string) error { return os.WriteFile(p, note, 0o600) }, "no rendezvous file"},
		"a folder":          {0, func(_ *testing.T, p string) error { return os.Mkdir(p, 0o700) }, "is no regular file"},
		"open to others":    {1, func(_ *testing.T, p string) error { return os.WriteFile(p, note, 0o644) }, "accepted is mode 0600"},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			cs, path := fileConfigs(t, 2, nil)
			if err := c.make(t, path); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(path)
			start := time.Now()
			_, err := Join(t.Context(), cs[c.rank])
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), fmt.Sprint("rank ", c.rank)) ||
				time.Since(start) > testBound/2 {
				t.Errorf("%v after %v, want %q", err, time.Since(start), c.want)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Errorf("the file is %q now", after)
			}
		})
	}
	for _, addr := range []string{"file:", "file:/", "file:here", "file:/a/../b", "file:/a/", "file:/a\nb"} {
		if _, err := Join(t.Context(), testConfig(0, 1, addr)); err == nil || !strings.Contains(err.Error(), "whole path") {
			t.Errorf("%q: %v", addr, err)
		}
	}
}

// A join that ends says what it waited for.
func TestFileMissing(t *testing.T) {
	checkLeaks(t)
	cs, path := fileConfigs(t, 3, func(c *Config) { c.Timeout = 1200 * time.Millisecond })
	_, err := Join(t.Context(), cs[1])
	if err == nil || !strings.Contains(err.Error(), path+" is not there yet") || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	gs, errs := joinAll(t.Context(), cs[:2])
	closeGroups(gs)
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "for rank 2 (of 3)") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	gone(t, path)
}

// Two jobs at one path: the second waits for the first to have met, and is told of it; two rank 0s of one job are told
// of each other.
func TestFileTwoJobs(t *testing.T) {
	checkLeaks(t)
	lines := make(chan string, 64)
	cs, path := fileConfigs(t, 2, nil)
	others := append([]Config(nil), cs...)
	for i := range others {
		others[i].Job, others[i].Log = "other", tell(lines)
	}
	type end struct {
		g   Group
		err error
	}
	join := func(c Config) chan end {
		done := make(chan end, 1)
		go func() { g, err := Join(t.Context(), c); done <- end{g, err} }()
		return done
	}
	a0 := join(cs[0])
	for {
		if _, err := os.Stat(path); err == nil {
			break
		}
		time.Sleep(time.Millisecond) // sleep: a file's coming is no event
	}
	_, err := Join(t.Context(), cs[0])
	var taken *RankTakenError
	if !errors.As(err, &taken) || taken.Other != os.Getpid() {
		t.Errorf("second rank 0: %v", err)
	}
	b0, b1 := join(others[0]), join(others[1])
	if l := <-lines; !strings.Contains(l, "of another job") {
		t.Errorf("logged %q", l)
	}
	for _, e := range []end{<-join(cs[1]), <-a0, <-b0, <-b1} {
		if e.err != nil {
			t.Error(e.err)
			continue
		}
		defer e.g.Close()
	}
	gone(t, path)
}

// While ranks gather, a file that goes is written again, and one that another took ends the join.
func TestFileKept(t *testing.T) {
	for name, takes := range map[string]bool{"removed": false, "taken": true} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			cs, path := fileConfigs(t, 2, nil)
			done := make(chan error, 1)
			var g0 Group
			go func() {
				var err error
				g0, err = Join(t.Context(), cs[0])
				done <- err
			}()
			var r *record
			for err := error(os.ErrNotExist); err != nil; r, err = readRecord(t.Context(), path, true) {
				time.Sleep(time.Millisecond) // sleep: a file's coming is no event
			}
			if takes {
				r.nonce = newNonce()
				var err error
				for ended := false; !ended; {
					// Again if need be: one that comes before rank 0 has looked at its own is of nobody, and replaced.
					if werr := writeRecord(t.Context(), path, r); werr != nil {
						t.Fatal(werr)
					}
					select {
					case err = <-done:
						ended = true
					case <-time.After(4 * placeWatch):
					}
				}
				if err == nil || !strings.Contains(err.Error(), "has taken the rendezvous file") {
					t.Error(err)
				}
				if now, err := readRecord(t.Context(), path, true); err != nil || now.nonce != r.nonce {
					t.Errorf("took away another's file: %v, %v", now, err)
				}
				return
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			g1, err := Join(t.Context(), cs[1])
			if err := errors.Join(err, <-done); err != nil {
				t.Fatal(err)
			}
			closeGroups([]Group{g0, g1})
		})
	}
}

// Storage that does not answer holds up nobody.
func TestStorageThatHangs(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("the join's deadline"))
	defer cancel()
	_, err := onStorage(ctx, "read x", func() (int, error) { <-hang; return 1, nil })
	if err == nil || !strings.Contains(err.Error(), "read x: the join's deadline") {
		t.Error(err)
	}
}
