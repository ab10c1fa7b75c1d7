// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// childEnv names what TestChild is to do as one rank of a job of processes.
const childEnv = "TEST_CHILD"

// child is one process of a job, this test binary run again.
type child struct {
	t     *testing.T
	rank  int
	cmd   *exec.Cmd
	stdin io.WriteCloser
	marks chan string // lines that begin with "mark: "
	ended chan struct{}
	err   error

	mu  sync.Mutex
	out bytes.Buffer
}

// noProcesses skips where ranks cannot be processes.
func noProcesses(t *testing.T) {
	if testenv.Race {
		t.Skip("ranks in several processes share memory that the race detector cannot see, and it reports what is handed over there")
	}
}

// startJob starts the ranks given of a job of n, each with the environment that "doorbell run" sets.
func startJob(t *testing.T, name string, n int, ranks []int, environ ...string) []*child {
	t.Helper()
	noProcesses(t)
	id := fmt.Sprintf("%d-%x", os.Getpid(), rand.Uint64())
	cs := make([]*child, n)
	for _, r := range ranks {
		c := &child{t: t, rank: r, marks: make(chan string, 100), ended: make(chan struct{})}
		c.cmd = exec.Command(os.Args[0], "-test.run=^TestChild$", fmt.Sprint("-test.timeout=", 3*testBound))
		c.cmd.Env = append(os.Environ(), childEnv+"="+name, "DOORBELL_ADDR=unix:@doorbell-test-"+id, "DOORBELL_JOB="+id, "DOORBELL_TOKEN=secret-"+id,
			fmt.Sprint("DOORBELL_RANK=", r), fmt.Sprint("DOORBELL_WORLD_SIZE=", n), fmt.Sprint("DOORBELL_LOCAL_SIZE=", n), fmt.Sprint("DOORBELL_TIMEOUT=", testBound),
			fmt.Sprint("DOORBELL_SEED=", testenv.Seed))
		c.cmd.Env = append(c.cmd.Env, environ...)
		var err error
		if c.stdin, err = c.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		r, w := io.Pipe()
		c.cmd.Stdout, c.cmd.Stderr = w, w
		if err := c.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go c.read(r)
		go func() {
			c.err = c.cmd.Wait()
			w.Close()
			close(c.ended)
		}()
		cs[c.rank] = c
		t.Cleanup(func() {
			c.cmd.Process.Kill()
			<-c.ended
			if t.Failed() {
				t.Logf("rank %d (%v):\n%s", c.rank, c.err, c.text())
			}
		})
	}
	return cs
}

func (c *child) read(r io.Reader) {
	defer close(c.marks)
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		c.mu.Lock()
		fmt.Fprintln(&c.out, sc.Text())
		c.mu.Unlock()
		if m, ok := strings.CutPrefix(sc.Text(), "mark: "); ok {
			c.marks <- m
		}
	}
}

func (c *child) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

// mark waits for the child to say that it has come so far.
func (c *child) mark(want string) {
	c.t.Helper()
	select {
	case m, ok := <-c.marks:
		if !ok || m != want {
			c.t.Fatalf("rank %d: mark %q, want %q", c.rank, m, want)
		}
	case <-time.After(testBound):
		c.t.Fatalf("rank %d: no mark %q", c.rank, want)
	}
}

// tell lets a child that waits in rank.hear go on.
func (c *child) tell() {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.stdin, "go"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// stop sends SIGSTOP and waits until each thread stands still.
func (c *child) stop() {
	c.t.Helper()
	c.signal(syscall.SIGSTOP)
	for deadline := time.Now().Add(testBound); ; time.Sleep(time.Millisecond) { // sleep: nothing tells of it
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.cmd.Process.Pid))
		running := err != nil || len(stats) == 0
		for _, f := range stats {
			b, err := os.ReadFile(f)
			if _, rest, ok := bytes.Cut(b, []byte(") ")); err == nil && (!ok || rest[0] != 'T') {
				running = true
			}
		}
		if !running {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("rank %d does not stop", c.rank)
		}
	}
}

// done waits for the child to end well.
func (c *child) done() {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(testBound + 5*time.Second):
		c.t.Fatalf("rank %d does not end", c.rank)
	}
	if c.err != nil || !strings.Contains(c.text(), "PASS") {
		c.t.Errorf("rank %d ended with %v", c.rank, c.err)
	}
}

func all(n int) (ranks []int) {
	for r := range n {
		ranks = append(ranks, r)
	}
	return ranks
}

// mark tells the test that this rank has come so far; hear waits for the test's word.
func mark(what string) { fmt.Printf("mark: %s\n", what) }

var stdin = bufio.NewReader(os.Stdin)

func (r *rank) hear() {
	if line, err := stdin.ReadString('\n'); err != nil || line != "go\n" {
		r.fail("heard %q, %v", line, err)
	}
}

// childParts are what a rank of each job does.
var childParts = map[string]func(r *rank){
	"programs": childPrograms, "killed": childKilled, "stopped": childStopped, "leaves": childLeaves, "overload": childOverload, "ends": childEnds, "polled": childPolled, "survivors": childSurvivors, "open": func(*rank) {},
}

// TestChild is one rank of a job of processes. The tests of this package run it.
func TestChild(t *testing.T) {
	part := childParts[os.Getenv(childEnv)]
	if part == nil {
		t.Skipf("%s names nothing: it is run by other tests", childEnv)
	}
	start := time.Now()
	c, err := doorbell.Open(context.Background(), doorbell.Options{Log: slog.New(slog.NewTextHandler(os.Stdout, nil))})
	if err != nil {
		t.Fatalf("open, after %v: %v", time.Since(start), err)
	}
	each(t, []*doorbell.Comm{c}, part)
	start = time.Now()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("close took %v", took)
	}
	if b, err := os.ReadFile("/proc/self/maps"); err != nil || bytes.Contains(b, []byte("/dev/shm")) {
		t.Errorf("memory of /dev/shm is mapped (%v)", err)
	}
}
