// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestJoinBadConfig(t *testing.T) {
	long := "unix:@" + strings.Repeat("x", 100)
	for what, edit := range map[string]func(*Config){
		"size is 0":                 func(c *Config) { c.Size, c.Rank = 0, 0 },
		"size is -1":                func(c *Config) { c.Size = -1 },
		"size is 65537":             func(c *Config) { c.Size = MaxRanks + 1 },
		"rank is 2":                 func(c *Config) { c.Rank = 2 },
		"rank is -3":                func(c *Config) { c.Rank = -3 },
		`address is "host"`:         func(c *Config) { c.Addr = "host" },
		`address is "tcp::1"`:       func(c *Config) { c.Addr = "tcp::1" },
		`port is "0"`:               func(c *Config) { c.Addr = "tcp:host:0" },
		`port is "65536"`:           func(c *Config) { c.Addr = "host:65536" },
		`port is "http"`:            func(c *Config) { c.Addr = "[::1]:http" },
		`address is "a/b:1"`:        func(c *Config) { c.Addr = "a/b:1" },
		"suspect is 1ms":            func(c *Config) { c.Suspect = time.Millisecond },
		"there is no token":         func(c *Config) { c.Token, c.RequireToken = nil, true },
		`address is ""`:             func(c *Config) { c.Addr = "" },
		`address is "unix:@"`:       func(c *Config) { c.Addr = "unix:@" },
		`address is "unix:rel/a"`:   func(c *Config) { c.Addr = "unix:rel/a" },
		`address is "unix:@a\x00b"`: func(c *Config) { c.Addr = "unix:@a\x00b" },
		"accepted is at most 107":   func(c *Config) { c.Addr = long },
		"timeout is -1s":            func(c *Config) { c.Timeout = -time.Second },
	} {
		c := testConfig(0, 2, freshAddr())
		edit(&c)
		g, err := Join(t.Context(), c)
		if err == nil || g != nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "accepted is") || !strings.Contains(err.Error(), fmt.Sprintf("rank %d:", c.Rank)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestJoinMissing(t *testing.T) {
	checkLeaks(t)
	addr := freshAddr()
	gs, errs := joinAll(t.Context(), func() (cs []Config) {
		for r := range 2 {
			c := testConfig(r, 4, addr)
			c.Timeout = 100 * time.Millisecond
			cs = append(cs, c)
		}
		return cs
	}())
	closeGroups(gs)
	own := 0
	for r, err := range errs {
		// Who is later to notice may report that the other gave up; the reason says it all.
		want := fmt.Sprintf("for ranks 2, 3 (of 4) at %s: not there", addr)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "waited ") {
			t.Errorf("rank %d: %v, want %q", r, err, want)
		}
		var je *JoinError
		if errors.As(err, &je) {
			own++
			if !slices.Equal(je.Missing, []int{2, 3}) || !errors.Is(err, context.DeadlineExceeded) || je.Waited < 100*time.Millisecond {
				t.Errorf("rank %d: %+v", r, je)
			}
		}
	}
	if own == 0 {
		t.Error("no rank has a JoinError")
	}
}

func TestJoinCancel(t *testing.T) {
	checkLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := testConfig(1, 2, freshAddr())
	c.warnAfter = time.Millisecond
	line := make(chan string, 4)
	c.Log = slog.New(slog.NewTextHandler(lineWriter(line), nil))
	done := make(chan error)
	go func() {
		_, err := Join(ctx, c)
		done <- err
	}()
	if got := <-line; !strings.Contains(got, "join waits") || !strings.Contains(got, "rank 0") {
		t.Errorf("logged %q", got)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestJoinMismatch(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		"size differs: 2, 3":    func(c *Config) { c.Size = 3 },
		"version differs: 1, 9": func(c *Config) { c.Version = 9 },
		"layout hash differs: 0x0000000000000007, 0x00000000000000ab": func(c *Config) { c.LayoutHash = 0xab },
	} {
		t.Run(strings.Fields(want)[0], func(t *testing.T) {
			checkLeaks(t)
			cs := configs(2, nil)
			edit(&cs[1])
			gs, errs := joinAll(t.Context(), cs)
			closeGroups(gs)
			what, values, _ := strings.Cut(want, ": ")
			a, b, _ := strings.Cut(values, ", ")
			for r, err := range errs {
				var me *MismatchError
				if !errors.As(err, &me) {
					// The other may have given up before our own verdict was read; its reason names the same.
					var de *DepartedError
					if !errors.As(err, &de) {
						t.Errorf("rank %d: %v", r, err)
						continue
					}
				}
				for _, part := range []string{what, "has " + a, "has " + b, "rank 0", "rank 1"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("rank %d: %q does not say %q", r, err, part)
					}
				}
			}
		})
	}
}

func TestJoinWrongToken(t *testing.T) {
	checkLeaks(t)
	cs := configs(3, func(c *Config) { c.Timeout = 300 * time.Millisecond })
	cs[2].Token = []byte("guess")
	gs, errs := joinAll(t.Context(), cs)
	closeGroups(gs)
	if !errors.Is(errs[2], ErrToken) {
		t.Errorf("rank 2: %v, want ErrToken", errs[2])
	}
	noted := 0
	for r, err := range errs[:2] { // for them it is a stranger; the real rank 2 never comes
		if err == nil || !strings.Contains(err.Error(), "for rank 2 (of 3)") {
			t.Errorf("rank %d: %v", r, err)
		} else if strings.Contains(err.Error(), "(rank 2: pid") && strings.Contains(err.Error(), "token differs") {
			noted++
		}
	}
	if noted == 0 { // the claimant ends at its first refusal, so one of them may not have met it
		t.Errorf("no rank tells of the claimant: %v", errs)
	}
}

// A claimant with another token does not disturb ranks whose true peer comes.
func TestWrongTokenDoesNotDisturb(t *testing.T) {
	checkLeaks(t)
	cs := configs(2, nil)
	bad := cs[1]
	bad.Token = nil
	first := make(chan Group)
	go func() {
		g, err := Join(t.Context(), cs[0])
		if err != nil {
			t.Error(err)
		}
		first <- g
	}()
	if _, err := Join(t.Context(), bad); !errors.Is(err, ErrToken) {
		t.Errorf("wrong token: %v", err)
	}
	g, err := Join(t.Context(), cs[1])
	if err != nil {
		t.Error(err)
	}
	closeGroups([]Group{g, <-first})
}

func TestTwoClaimOneRank(t *testing.T) {
	for _, form := range []string{"abstract", "path"} {
		t.Run(form, func(t *testing.T) {
			checkLeaks(t)
			c := testConfig(1, 2, freshAddr())
			if form == "path" {
				c.Addr = "unix:" + filepath.Join(t.TempDir(), "s")
			}
			_, errs := joinAll(t.Context(), []Config{c, c})
			for _, err := range errs {
				var te *RankTakenError
				if !errors.As(err, &te) || te.Rank != 1 || te.Other != os.Getpid() || !strings.Contains(err.Error(), "rank 1 is claimed by two processes") {
					t.Errorf("%v", err)
				}
			}
		})
	}
}

// Who comes when the group is complete is told so, and the group goes on.
func TestLateClaim(t *testing.T) {
	checkLeaks(t)
	cs := configs(2, nil)
	gs, errs := joinAll(t.Context(), cs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeGroups(gs)
	_, err := Join(t.Context(), cs[1])
	var te *RankTakenError
	if !errors.As(err, &te) || !te.Joined || !strings.Contains(err.Error(), "accepted is a job started anew") {
		t.Errorf("late: %v", err)
	}
	extra := cs[1]
	extra.Rank, extra.Size = 2, 3
	if _, err := Join(t.Context(), extra); err == nil || !strings.Contains(err.Error(), "size differs") {
		t.Errorf("extra: %v", err)
	}
	each(gs, func(g Group) {
		if _, err := g.AllGather(t.Context(), "still", Blob{}); err != nil {
			t.Error(err)
		}
	})
}

func TestUnauthenticatedWarns(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	line := make(chan string, 16)
	cs := configs(3, func(c *Config) {
		c.Token = nil
		c.Log = slog.New(slog.NewTextHandler(lineWriter(line), nil))
	})
	gs, errs := joinAll(t.Context(), cs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	closeGroups(gs)
	close(line)
	for l := range line {
		mu.Lock()
		lines = append(lines, l)
		mu.Unlock()
	}
	if len(lines) != 1 || !strings.Contains(lines[0], "unauthenticated") || !strings.Contains(lines[0], "WARN") {
		t.Errorf("logged %q, want one warning", lines)
	}
}

func TestSameHostIsBootID(t *testing.T) {
	cs := configs(4, nil)
	for r, id := range []string{"a", "a", "b", ""} {
		if cs[r].bootID = id; id == "" {
			cs[r].bootID = "c"
		}
	}
	gs, errs := joinAll(t.Context(), cs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeGroups(gs)
	for r, g := range gs {
		for q := range gs {
			if got, want := g.SameHost(q), cs[r].bootID == cs[q].bootID; got != want {
				t.Errorf("rank %d: SameHost(%d) = %v, want %v", r, q, got, want)
			}
		}
	}
	if bootID() == "" {
		t.Error("no boot id on this system")
	}
}

func TestPathSockets(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	prefix := filepath.Join(dir, "s")
	cs := configs(3, func(c *Config) { c.Addr = "unix:" + prefix })
	a, err := parseAddr(cs[0].Addr, "job", 3)
	if err != nil {
		t.Fatal(err)
	}
	// Left by a rank that was killed: a socket file that nobody listens at.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: a.of(1), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	gs, errs := joinAll(t.Context(), cs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(a.of(0)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket file: %v, %v", st.Mode(), err)
	}
	closeGroups(gs)
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestJobsAreApart(t *testing.T) {
	checkLeaks(t)
	addr := freshAddr()
	var cs []Config
	for _, job := range []string{"a", "b"} {
		for r := range 2 {
			c := testConfig(r, 2, addr)
			c.Job, c.Token = job, []byte(job)
			cs = append(cs, c)
		}
	}
	gs, errs := joinAll(t.Context(), cs)
	defer closeGroups(gs)
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// dialRank connects to a rank that may not listen yet.
func dialRank(t testing.TB, c Config) *net.UnixConn {
	a, err := parseAddr(c.Addr, c.Job, c.Size)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testBound)
	defer cancel()
	var p pause
	for {
		conn, err := dialUnix(ctx, a.of(c.Rank))
		if err == nil {
			conn.SetDeadline(time.Now().Add(testBound))
			return conn
		}
		if !notYet(err) || !p.wait(ctx) {
			t.Fatal(err)
		}
	}
}

// Strangers come first, and some stay, while the ranks join. Each is dropped within its bound.
func TestStrangers(t *testing.T) {
	checkLeaks(t)
	cs := configs(3, func(c *Config) { c.handshake = 200 * time.Millisecond })
	magic := []byte(helloMagic)
	h := newHello(&cs[1], 0)
	fair := h.encode()
	misled := h
	misled.to = 5
	other := misled.encode()
	strangers := map[string][]byte{
		"connect only": nil, "one byte": magic[:1], "seven bytes": magic[:7], "magic only": magic,
		"http":        []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"garbage":     slices.Repeat([]byte{0xa5, 0x5a, 0}, 100),
		"half hello":  fair[:60],
		"hello only":  fair[:],
		"wrong proof": append(slices.Clone(fair[:]), make([]byte, proofBytes)...),
		"bad code":    append(slices.Clone(fair[:]), slices.Repeat([]byte{0xff}, proofBytes)...),
		"wrong rank":  other[:],
	}
	first := make(chan error, 1)
	var g0 Group
	go func() {
		var err error
		g0, err = Join(t.Context(), cs[0])
		first <- err
	}()
	var open []*net.UnixConn
	for what, b := range strangers {
		for _, stay := range []bool{false, true} {
			conn := dialRank(t, cs[0])
			if _, err := conn.Write(b); err != nil && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("%s: %v", what, err)
			}
			if stay {
				open = append(open, conn)
			} else {
				conn.Close()
			}
		}
	}
	gs, errs := joinAll(t.Context(), cs[1:])
	errs = append(errs, <-first)
	gs = append(gs, g0)
	defer closeGroups(gs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	undisturbed(t, gs, open)
}

// More silent strangers than there are slots delay a join by their bound, no more.
func TestManySilentStrangers(t *testing.T) {
	checkLeaks(t)
	cs := configs(2, func(c *Config) { c.handshake = 50 * time.Millisecond })
	first := make(chan error, 1)
	var g0 Group
	go func() {
		var err error
		g0, err = Join(t.Context(), cs[0])
		first <- err
	}()
	for range 150 {
		defer dialRank(t, cs[0]).Close()
	}
	g1, err := Join(t.Context(), cs[1])
	if err := errors.Join(err, <-first); err != nil {
		t.Error(err)
	}
	closeGroups([]Group{g0, g1})
}

// A squatter on a lower rank's address is named; joining goes on trying until the deadline.
func TestSquatter(t *testing.T) {
	for what, answer := range map[string]string{"does not answer": "", "not a rank": "HTTP/1.1 400 Bad Request\r\n\r\n"} {
		t.Run(what, func(t *testing.T) {
			checkLeaks(t)
			cs := configs(2, nil)
			a, err := parseAddr(cs[0].Addr, "job", 2)
			if err != nil {
				t.Fatal(err)
			}
			ln, err := net.Listen("unix", a.of(0))
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			var wg sync.WaitGroup
			defer wg.Wait()
			defer ln.Close()
			wg.Go(func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					wg.Go(func() {
						io.WriteString(c, answer)
						io.Copy(io.Discard, c)
						c.Close()
					})
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err = Join(ctx, cs[1])
			if err == nil || !strings.Contains(err.Error(), "for rank 0 (of 2)") || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
				t.Errorf("rank 1: %v", err)
			}
			cs[0].handshake = 20 * time.Millisecond
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err = Join(ctx, cs[0]); err == nil || !strings.Contains(err.Error(), "in use by pid") {
				t.Errorf("rank 0: %v", err)
			}
		})
	}
}

// A rank that dies while others still join ends their join at once, not at the deadline.
func TestDeathWhileJoining(t *testing.T) {
	checkLeaks(t)
	cs := configs(3, nil)
	done := make(chan error, 1)
	go func() {
		_, err := Join(t.Context(), cs[0])
		done <- err
	}()
	conn := dialRank(t, cs[0])
	h := newHello(&cs[1], 0)
	if _, code, err := dialShake(conn, &h, cs[1].Token); err != nil || code != codeAccept {
		t.Fatal(code, err)
	}
	conn.Close()
	var pe *PeerLostError
	if err := <-done; !errors.As(err, &pe) || pe.Rank != 1 {
		t.Error(err)
	}
}
