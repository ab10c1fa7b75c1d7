// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// meet is a rank of a job that meets at the rendezvous: rank 0 listens there, and whoever sees a connection end says so.
func meet(rank, dies string) int {
	lost := func(who string) int {
		fmt.Fprintf(os.Stderr, "doorbell: rank %s: rank %s is lost\n", rank, who)
		return 1
	}
	addr, n := os.Getenv("DOORBELL_ADDR"), os.Getenv("DOORBELL_WORLD_SIZE")
	size, err := strconv.Atoi(n)
	if err != nil {
		return 98
	}
	if rank != "0" {
		c, err := net.Dial("tcp", addr)
		for end := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(end); c, err = net.Dial("tcp", addr) {
			time.Sleep(time.Millisecond) // sleep: rank 0 comes when it comes
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 97
		}
		io.ReadFull(c, make([]byte, 1)) // all are there
		if rank == dies {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		io.ReadFull(c, make([]byte, 1))
		return lost(dies)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 96
	}
	var all []net.Conn
	for len(all) < size-1 {
		c, err := ln.Accept()
		if err != nil {
			return 95
		}
		all = append(all, c)
	}
	ended := make(chan bool, size)
	for _, c := range all {
		c.Write([]byte{1})
		go func() {
			io.ReadFull(c, make([]byte, 1))
			ended <- true
		}()
	}
	<-ended
	return lost(dies)
}

// freePort is a port of this host where nobody listens now.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func tokenFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
	return name
}

type hostEnd struct {
	code        int
	stdout, err string
	cause       error
}

// onHosts launches a job of several hosts, each with a launcher of its own in this process.
func onHosts(t *testing.T, nodes, ranks int, role string, change func(node int, o *Options)) []hostEnd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	at, token := freePort(t), tokenFile(t, "secret\n", 0o600)
	ends := make([]hostEnd, nodes)
	var wg sync.WaitGroup
	for i := range ends {
		wg.Go(func() {
			var out, errw bytes.Buffer
			o := Options{N: ranks, Nodes: nodes, NodeRank: i, Rendezvous: at, TokenFile: token, Program: "/proc/self/exe",
				Env: []string{roleVar + "=" + role}, Stdout: &out, Stderr: &errw}
			if change != nil {
				change(i, &o)
			}
			e := &ends[i]
			e.code, e.cause = Run(ctx, o)
			e.stdout, e.err = out.String(), errw.String()
		})
	}
	wg.Wait()
	if kids := children(t); len(kids) > 0 {
		t.Errorf("%s: processes left behind: %v", role, kids)
	}
	return ends
}

func valueIn(out, name string) string {
	_, rest, _ := strings.Cut(out, name+"=")
	v, _, _ := strings.Cut(rest, "\n")
	return v
}

func TestHostsEnvironment(t *testing.T) {
	t.Setenv("DOORBELL_NODES", "2")
	t.Setenv("DOORBELL_NODE_RANK", "1")
	t.Setenv("DOORBELL_TOKEN", "of-another-job")
	ends := onHosts(t, 2, 4, "env", func(node int, o *Options) { o.RanksPerNode = 1 })
	for i, e := range ends {
		if e.code != 0 {
			t.Fatalf("node %d: %d %v\n%s", i, e.code, e.cause, e.err)
		}
		for l := range 2 {
			r := 2*i + l
			for _, want := range []string{"RANK=" + fmt.Sprint(r), "WORLD_SIZE=4", "LOCAL_RANK=" + fmt.Sprint(l), "LOCAL_SIZE=2", "RANKS_PER_NODE=1"} {
				if line := fmt.Sprintf("[%d] DOORBELL_%s\n", r, want); !strings.Contains(e.stdout, line) {
					t.Errorf("no %q in\n%s", line, e.stdout)
				}
			}
		}
		for _, not := range []string{"DOORBELL_NODES", "DOORBELL_NODE_RANK", "DOORBELL_TOKEN="} {
			if strings.Contains(e.stdout, not) {
				t.Errorf("%s in\n%s", not, e.stdout)
			}
		}
	}
	for _, same := range []string{"DOORBELL_JOB", "DOORBELL_ADDR", "DOORBELL_TOKEN_FILE"} {
		if a, b := valueIn(ends[0].stdout, same), valueIn(ends[1].stdout, same); a == "" || a != b {
			t.Errorf("%s: %q and %q", same, a, b)
		}
	}
	if a, b := valueIn(ends[0].stdout, "DOORBELL_LAUNCH_ID"), valueIn(ends[1].stdout, "DOORBELL_LAUNCH_ID"); a == "" || a == b {
		t.Errorf("launch ids %q and %q", a, b)
	}
}

// TestLaunchersOfOneJob: a launcher that is done first leaves alone what another started on the same machine.
func TestLaunchersOfOneJob(t *testing.T) {
	ends := onHosts(t, 2, 2, "second", nil)
	for i, e := range ends {
		if e.code != 0 {
			t.Errorf("node %d: %d %v\n%s", i, e.code, e.cause, e.err)
		}
	}
}

// TestLostAcrossHosts: the death of a rank ends the others' ranks, and each launcher says which of its own ended and why.
func TestLostAcrossHosts(t *testing.T) {
	ends := onHosts(t, 2, 4, "meet:3", nil)
	var e *RankError
	if !errors.As(ends[1].cause, &e) || e.Rank != 3 || e.Signal != syscall.SIGKILL || ends[1].code != ExitFailed {
		t.Errorf("node 1: %+v", ends[1])
	}
	if !strings.Contains(ends[1].err, "doorbell run: node 1: rank 3 (pid ") || !strings.Contains(ends[1].err, "killed by signal 9") {
		t.Errorf("node 1 says\n%s", ends[1].err)
	}
	// Which of its ranks is the first to notice is open.
	if !errors.As(ends[0].cause, &e) || e.Rank > 1 || e.Detail != fmt.Sprintf("doorbell: rank %d: rank 3 is lost", e.Rank) || ends[0].code != ExitFailed {
		t.Fatalf("node 0: %+v", ends[0])
	}
	if !strings.Contains(ends[0].err, fmt.Sprintf("doorbell run: node 0: rank %d (pid ", e.Rank)) {
		t.Errorf("node 0 says\n%s", ends[0].err)
	}
}

func TestTokenFilesRefused(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"missing": {filepath.Join(t.TempDir(), "none"), "no such file"},
		"open":    {tokenFile(t, "x", 0o644), "has mode 0644; only its owner may read it: chmod 600"},
		"group":   {tokenFile(t, "x", 0o640), "has mode 0640"},
		"empty":   {tokenFile(t, " \n", 0o600), "is empty; make one with"},
		"large":   {tokenFile(t, strings.Repeat("x", maxToken+1), 0o600), "at most 65536"},
		"device":  {"/dev/null", "no regular file"},
		"folder":  {t.TempDir(), "no regular file"},
	} {
		code, err := Run(context.Background(), Options{N: 2, Nodes: 2, Rendezvous: "a:1", TokenFile: c.file, Program: "/bin/true"})
		if code != ExitUsage || err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "xxx") {
			t.Errorf("%s: %d %v", name, code, err)
		}
	}
}

// TestJobName: hosts that name the rendezvous differently come to one job; another token or port makes another.
func TestJobName(t *testing.T) {
	job := func(o Options, token string) string {
		s, err := o.jobName([]byte(token))
		if err != nil || len(s) != 16 {
			t.Errorf("%q %v", s, err)
		}
		return s
	}
	a := job(Options{Rendezvous: "node0:4711"}, "s")
	if b := job(Options{Rendezvous: "[fd00::1]:4711", N: 8}, "s"); a != b {
		t.Errorf("%q and %q", a, b)
	}
	if b := job(Options{Rendezvous: "node0:4712"}, "s"); a == b {
		t.Error("another port, the same job")
	}
	if b := job(Options{Rendezvous: "node0:4711"}, "t"); a == b {
		t.Error("another token, the same job")
	}
	// The golden vector: hosts may run different builds.
	if a != "97cad41d04c402f4" {
		t.Errorf("the job's name is %q now", a)
	}
	f := job(Options{Rendezvous: "file:/shared/meet"}, "s")
	if b := job(Options{Rendezvous: "file:/mnt/shared/meet"}, "s"); f != b || f == a {
		t.Errorf("%q and %q", f, b)
	}
	if b := job(Options{Rendezvous: "file:/shared/other"}, "s"); f == b {
		t.Error("another file, the same job")
	}
	o := Options{Nodes: 2, N: 2, Rendezvous: "a:1", Job: "mine", TokenFile: tokenFile(t, "x", 0o600)}
	if s, err := o.SharedJob(); s != "mine" || err != nil {
		t.Errorf("%q %v", s, err)
	}
}

func TestCheckRendezvous(t *testing.T) {
	for _, s := range []string{"node7:4711", "10.0.0.1:1", "[fd00::7]:65535", "[fe80::1%eth0]:99", "a.b.example.org:80", "file:/shared/meet"} {
		if err := CheckRendezvous(s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	for _, s := range []string{"", "node7", "node7:", ":4711", "node7:0", "node7:65536", "node7:http", "fd00::7:4711", "unix:/a", "unix:@a", "http://a:80", "a b:1", "0.0.0.0:7", "[::]:7", "a:+1", "a:1:2", "file:", "file:meet", "file:/", "file:/a/../b", "file:/a/", "file:/a\nb"} {
		if err := CheckRendezvous(s); err == nil || !strings.Contains(err.Error(), "accepted is HOST:PORT") {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// TestShares: over all hosts each rank is started exactly once, and rank 0 by node 0.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 32).Draw(t, "nodes")
		each := rapid.IntRange(1, 64).Draw(t, "each")
		seen := make([]int, nodes*each)
		for i := range nodes {
			o := Options{N: nodes * each, Nodes: nodes, NodeRank: i}
			for r := o.first(); r < o.first()+o.share(); r++ {
				seen[r]++
			}
		}
		for r, n := range seen {
			if n != 1 {
				t.Fatalf("rank %d is started %d times", r, n)
			}
		}
	})
}
