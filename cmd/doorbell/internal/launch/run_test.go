// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// launched runs n ranks that play a role, and checks that nothing of them is left.
func launched(t *testing.T, n int, role string, change func(*Options)) (code int, stdout, stderr string, err error) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	before := descriptors(t)
	var out, errw bytes.Buffer
	o := Options{N: n, Program: "/proc/self/exe", Env: []string{roleVar + "=" + role}, Stdout: &out, Stderr: &errw}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 20*time.Second, errors.New("the test's deadline"))
	defer cancel()
	code, err = Run(ctx, o)
	if ctx.Err() != nil {
		t.Errorf("%s: the test's deadline ended it", role)
	}
	if after := descriptors(t); !slices.Equal(before, after) {
		t.Errorf("%s: descriptors were %q, now %q", role, before, after)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("%s: files left behind: %q", role, left)
	}
	if kids := children(t); len(kids) > 0 {
		t.Errorf("%s: processes left behind: %v", role, kids)
	}
	return code, out.String(), errw.String(), err
}

// descriptors are those of this process, without the runtime's poller, which comes with the first pipe and stays.
func descriptors(t *testing.T) []string {
	t.Helper()
	var list []string
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && !strings.Contains(to, "eventpoll") && !strings.Contains(to, "eventfd") {
			list = append(list, to)
		}
	}
	slices.Sort(list)
	return list
}

func children(t *testing.T) []string {
	t.Helper()
	var list []string
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		list = append(list, strings.Fields(string(b))...)
	}
	return list
}

// gone says whether a process has ended; a zombie that its adopter has not reaped yet counts as ended.
func gone(pid string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		time.Sleep(2 * time.Millisecond) // sleep: another process's end is no event for us
		if time.Now().After(end) {
			t.Fatalf("after 10 s still not: %s", what)
		}
	}
}

func sortedLines(s string) string {
	l := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	slices.Sort(l)
	return strings.Join(l, "\n")
}

func TestEnvironment(t *testing.T) {
	t.Setenv("DOORBELL_RANK", "99") // of a job outside
	code, out, _, err := launched(t, 2, "env", func(o *Options) {
		o.RanksPerNode, o.Net, o.Backend, o.Device, o.Progress = 1, "shm", "proxy", "soft", "assisted"
	})
	if code != 0 || err != nil {
		t.Fatal(code, err)
	}
	var job string
	for line := range strings.Lines(out) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "[0] DOORBELL_JOB="); ok {
			job = id
		}
	}
	for _, want := range []string{
		"[0] DOORBELL_RANK=0", "[1] DOORBELL_RANK=1", "[1] DOORBELL_WORLD_SIZE=2", "[1] DOORBELL_LOCAL_RANK=1", "[1] DOORBELL_LOCAL_SIZE=2",
		"[1] DOORBELL_JOB=" + job, "[1] DOORBELL_ADDR=unix:@doorbell-" + job, "[1] DOORBELL_RANKS_PER_NODE=1", "[1] DOORBELL_NET=shm",
		"[1] DOORBELL_GIN_BACKEND=proxy", "[1] DOORBELL_DEVICE=soft", "[1] DOORBELL_PROGRESS=assisted", "[1] token 64 bytes, mode -rw-------, <nil>",
	} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
	if len(job) < 16 || strings.Contains(out, "RANK=99\n") {
		t.Errorf("job %q in\n%s", job, out)
	}
}

func TestTokenOfTheCaller(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"DOORBELL_TOKEN=s3":             func(o *Options) { o.Env = append(o.Env, "DOORBELL_TOKEN=s3") },
		"DOORBELL_TOKEN_FILE=/dev/null": func(o *Options) { o.TokenFile = "/dev/null" },
	} {
		code, out, _, err := launched(t, 1, "env", change)
		if code != 0 || err != nil || !strings.Contains(out, "[0] "+name+"\n") || strings.Contains(out, "doorbell-token") {
			t.Errorf("%s: %d %v\n%s", name, code, err, out)
		}
	}
}

func TestOutput(t *testing.T) {
	_, out, errs, err := launched(t, 2, "bytes", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := sortedLines("[0] a\x00\xff\x80b\n[0] \r\xfe no newline\n[1] a\x00\xff\x80b\n[1] \r\xfe no newline")
	if sortedLines(out) != want {
		t.Errorf("stdout %q, want %q", sortedLines(out), want)
	}
	if sortedLines(errs) != "[0] to stderr\n[1] to stderr" {
		t.Errorf("stderr %q", errs)
	}
	var raw bytes.Buffer
	_, out, _, err = launched(t, 2, "bytes", func(o *Options) { o.RawStdout = &raw })
	if err != nil || raw.String() != "a\x00\xff\x80b\n\r\xfe no newline" || strings.Contains(out, "[0]") {
		t.Errorf("raw %q, rest %q, %v", raw.String(), out, err)
	}
}

func TestStdinOfRankZero(t *testing.T) {
	name := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(name, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	_, out, _, err := launched(t, 2, "stdin", func(o *Options) { o.Stdin = in })
	if err != nil || out != "[0] read one\n[0] read two\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestRankFails(t *testing.T) {
	for _, c := range []struct {
		role, want string
		rank       int
	}{
		{"exit", `(pid %d): exit status 7 after %s: doorbell: bad  weather`, 2},
		{"die", `(pid %d): killed by signal 9 (killed) after %s`, 1},
	} {
		start := time.Now()
		code, _, errs, err := launched(t, 4, c.role, func(o *Options) { o.Grace = time.Minute })
		var e *RankError
		if code != ExitFailed || !errors.As(err, &e) || e.Rank != c.rank {
			t.Fatalf("%s: %d %v", c.role, code, err)
		}
		want := fmt.Sprintf("rank %d "+c.want, e.Rank, e.Pid, seconds(e.After))
		if err.Error() != want || !strings.Contains(errs, "doorbell run: "+want+"; ending the other 3\n") {
			t.Errorf("%s: error %q, want %q; stderr:\n%s", c.role, err, want, errs)
		}
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("%s: it took %v: the others were not ended by SIGTERM", c.role, d)
		}
	}
}

func TestDeafRankIsKilled(t *testing.T) {
	flag := filepath.Join(t.TempDir(), "ready")
	code, _, errs, err := launched(t, 2, "deaf:"+flag, func(o *Options) { o.Grace = 50 * time.Millisecond })
	var e *RankError
	if code != ExitFailed || !errors.As(err, &e) || e.Rank != 0 || !strings.Contains(errs, "1 ranks did not end within 50ms of SIGTERM; killed") {
		t.Errorf("%d %v\n%s", code, err, errs)
	}
}

func TestStoppedRankHearsTheEnd(t *testing.T) {
	code, _, _, err := launched(t, 2, "stopped", func(o *Options) { o.Grace = time.Minute })
	if code != ExitFailed || err == nil {
		t.Errorf("%d %v", code, err)
	}
}

func TestLinger(t *testing.T) {
	start := time.Now()
	_, _, _, err := launched(t, 2, "die", func(o *Options) { o.Linger = 150 * time.Millisecond })
	if d := time.Since(start); err == nil || d < 150*time.Millisecond {
		t.Errorf("ended after %v: %v", d, err)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("enough"))
	code, err := Run(ctx, Options{N: 2, Program: "/proc/self/exe", Env: []string{roleVar + "=hang"}, Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}})
	if code != ExitFailed || err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("%d %v", code, err)
	}
}

func TestGrandchildren(t *testing.T) {
	code, out, _, err := launched(t, 2, "parents", func(o *Options) { o.Grace = time.Minute })
	if code != 0 || err != nil {
		t.Fatalf("%d %v", code, err)
	}
	pids := pidsIn(out)
	if len(pids) != 6 {
		t.Fatalf("6 processes expected:\n%s", out)
	}
	for _, p := range pids {
		eventually(t, "process "+p+" is gone", func() bool { return gone(p) })
	}
}

func pidsIn(out string) (pids []string) {
	for line := range strings.Lines(out) {
		if _, p, ok := strings.Cut(strings.TrimSpace(line), " pid "); ok {
			pids = append(pids, p)
		}
	}
	return pids
}

// launcher starts a launcher process, with ranks that play a role, in a TMPDIR of its own.
func launcher(t *testing.T, ranks int, role string) (cmd *exec.Cmd, out *bufio.Scanner, tmp string) {
	t.Helper()
	tmp = t.TempDir()
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=launcher:%d,%s", roleVar, ranks, role), "TMPDIR="+tmp)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	t.Cleanup(func() { stop.Stop() })
	return cmd, bufio.NewScanner(pipe), tmp
}

func TestForwardsSignals(t *testing.T) {
	for _, s := range forwarded {
		t.Run(s.String(), func(t *testing.T) {
			if signal.Ignored(s) {
				t.Skip("the tests were started with this signal ignored, and a launcher respects that")
			}
			cmd, out, _ := launcher(t, 2, "signal")
			var seen []string
			for out.Scan() {
				seen = append(seen, out.Text())
				if len(seen) == 2 { // both ranks listen
					cmd.Process.Signal(s)
				}
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%q", err, seen)
			}
			for _, want := range []string{fmt.Sprintf("[0] heard %v", s), fmt.Sprintf("[1] heard %v", s), "launcher 0 <nil>"} {
				if !slices.Contains(seen, want) {
					t.Errorf("no %q in %q", want, seen)
				}
			}
		})
	}
}

func TestSignalThatEndsARank(t *testing.T) {
	cmd, out, _ := launcher(t, 1, "parents:wait") // plain processes: the first SIGTERM ends them and fails the rank
	for out.Scan() && !strings.Contains(out.Text(), "pid") {
	}
	cmd.Process.Signal(syscall.SIGTERM)
	last := ""
	for out.Scan() {
		last = out.Text()
	}
	cmd.Wait()
	if !strings.Contains(last, "launcher 1 rank 0") || !strings.Contains(last, "killed by signal 15 (terminated)") {
		t.Errorf("%q", last)
	}
}

// TestKilledLauncher: the kernel ends the ranks, and the guard their children and the token file.
func TestKilledLauncher(t *testing.T) {
	cmd, out, tmp := launcher(t, 2, "parents:wait")
	var pids []string
	for len(pids) < 6 && out.Scan() {
		pids = append(pids, pidsIn(out.Text()+"\n")...)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "doorbell-token-*")); len(left) != 1 {
		t.Errorf("token files while it runs: %q", left)
	}
	cmd.Process.Kill()
	cmd.Wait()
	for _, p := range pids {
		eventually(t, "process "+p+" is gone", func() bool { return gone(p) })
	}
	eventually(t, "the token file is gone", func() bool {
		left, _ := filepath.Glob(filepath.Join(tmp, "*"))
		return len(left) == 0
	})
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	plain, garbage := filepath.Join(dir, "plain"), filepath.Join(dir, "garbage")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(garbage, []byte("\x01\x02\x03"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    Options
		code int
		want string
	}{
		{Options{N: 0, Program: "x"}, 2, "0 ranks asked for, 1 to 4096"},
		{Options{N: 5000, Program: "x"}, 2, "5000 ranks"},
		{Options{N: 3, RanksPerNode: 2, Program: "x"}, 2, "3 ranks are no multiple of 2 ranks per node"},
		{Options{N: 2, RanksPerNode: -1, Program: "x"}, 2, "-1 ranks per node"},
		{Options{N: 2, Nodes: 2, Program: "x"}, 2, `rendezvous ""`},
		{Options{N: 3, Nodes: 2, Rendezvous: "a:1", Program: "x"}, 2, "3 ranks are no multiple of 2 nodes"},
		{Options{N: 2, Nodes: 2, NodeRank: 2, Program: "x"}, 2, "node rank 2 of 2 nodes, 0 to 1"},
		{Options{N: 2, NodeRank: 1, Program: "x"}, 2, "node rank 1 of 1 nodes"},
		{Options{N: 4, Nodes: 2, Rendezvous: "a:1", RanksPerNode: 4, Program: "x"}, 2, "2 ranks are no multiple of 4 ranks per node"},
		{Options{N: 2, Job: "a b", Program: "x"}, 2, `job id "a b"`},
		{Options{N: 2, Nodes: 2, Rendezvous: "a:1", Program: "/bin/true"}, 2, "several hosts need a token file; make one with"},
		{Options{N: 2, Nodes: -1, Program: "x"}, 2, "-1 nodes"},
		{Options{N: 2}, 2, "no program"},
		{Options{N: 2, Program: "doorbell-no-such-program"}, 2, "is not in PATH"},
		{Options{N: 2, Program: filepath.Join(dir, "none")}, 2, "does not exist"},
		{Options{N: 2, Program: plain}, 2, "is not executable"},
		{Options{N: 2, Program: garbage}, 2, "exec format error"},
		{Options{N: 2, Program: dir}, 2, dir},
	} {
		code, err := Run(context.Background(), c.o)
		if code != c.code || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %d %v, want %d %q", c.o, code, err, c.code, c.want)
		}
	}
}
