// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// A child is this test binary again, as one rank in a process of its own. It joins by the config in childEnv, then obeys
// lines on its standard input and answers by lines on its standard output:
//
//	fds NAME COUNT       all-gather with COUNT memory files, contents checked
//	gather NAME TIMEOUT  plain all-gather
//	epoch                the group's epoch, and to whom descriptors can be passed
//	close                Close, then exit
const childEnv = "DOORBELL_BOOTSTRAP_CHILD"

func childMain() int {
	var c Config
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &c); err != nil {
		fmt.Println("config:", err)
		return 2
	}
	c.Log = quiet()
	var mu sync.Mutex
	say := func(format string, a ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", a...)
	}
	before := openFDs()
	g, err := Join(context.Background(), c)
	if err != nil {
		say("join failed: %v", err)
		return 3
	}
	g.OnLost(func(r int, cause error) { say("lost %d: %v", r, cause) })
	g.OnDeparted(func(r int) { say("departed %d", r) })
	say("joined")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		w := strings.Fields(in.Text())
		switch w[0] {
		case "fds":
			var n int
			fmt.Sscan(w[2], &n)
			say("fds %s: %v", w[1], childFDs(g, w[1], n))
		case "gather":
			d, _ := time.ParseDuration(w[2])
			ctx, cancel := context.WithTimeout(context.Background(), d)
			say("begin %s", w[1])
			_, err := g.AllGather(ctx, w[1], Blob{})
			cancel()
			var lost *PeerLostError
			var gone *DepartedError
			say("gather %s: lost=%v departed=%v: %v", w[1], errors.As(err, &lost), errors.As(err, &gone), err)
		case "epoch":
			var near []int
			for r := range g.Size() {
				if g.CanPassFDs(r) {
					near = append(near, r)
				}
			}
			say("epoch %d near %v", g.Epoch(), near)
		case "close":
			g.Close()
			if after := openFDs(); after > before+1 { // standard input's poller
				say("closed with %d descriptors, before %d", after, before)
			} else {
				say("closed")
			}
			return 0
		}
	}
	return 0
}

func childFDs(g Group, name string, n int) error {
	var mine Blob
	for i := range n {
		fd := memfd(panicTB{}, fmt.Sprintf("rank %d fd %d", g.Rank(), i))
		mine.FDs = append(mine.FDs, fd)
		defer closeFD(fd)
	}
	mine.Bytes = []byte(strings.Repeat(fmt.Sprint(g.Rank()), 100_000))
	all, err := g.AllGather(context.Background(), name, mine)
	if err != nil {
		return err
	}
	for r, b := range all {
		if r == g.Rank() {
			continue
		}
		defer closeAll(b.FDs)
		want := 0
		if g.CanPassFDs(r) {
			want = n
		}
		if string(b.Bytes) != strings.Repeat(fmt.Sprint(r), 100_000) || len(b.FDs) != want || !g.SameHost(r) || b.Local != nil {
			return fmt.Errorf("rank %d: %d bytes, %d descriptors, same host %v", r, len(b.Bytes), len(b.FDs), g.SameHost(r))
		}
		for i, fd := range b.FDs {
			if got, want := fdText(fd), fmt.Sprintf("rank %d fd %d", r, i); got != want || !cloexec(fd) {
				return fmt.Errorf("rank %d: descriptor %d holds %q, want %q", r, i, got, want)
			}
		}
	}
	return nil
}

// panicTB stands in for testing.TB in a child.
type panicTB struct{ testing.TB }

func (panicTB) Fatal(a ...any) { panic(fmt.Sprint(a...)) }

type child struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
}

func startChild(t *testing.T, c Config) *child { return startChildBy(t, c, os.Args[0]) }

// startChildBy starts it by a command line that ends in this binary.
func startChildBy(t *testing.T, c Config, line ...string) *child {
	c.Log = nil
	env, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), childEnv+"="+string(env))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ch := &child{t: t, name: fmt.Sprintf("rank %d (pid %d)", c.Rank, cmd.Process.Pid), cmd: cmd, in: in, lines: make(chan string, 64)}
	go func() {
		defer close(ch.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			ch.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		for range ch.lines {
		}
		cmd.Wait()
	})
	return ch
}

func startChildren(t *testing.T, cs []Config) []*child {
	var out []*child
	for _, c := range cs {
		out = append(out, startChild(t, c))
	}
	return out
}

func (c *child) tell(format string, a ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.in, format+"\n", a...); err != nil {
		c.t.Fatalf("%s: %v", c.name, err)
	}
}

// expect returns the next line that begins with prefix; lines before it must begin with one of skip.
func (c *child) expect(prefix string, skip ...string) string {
	c.t.Helper()
	deadline := time.After(testBound)
next:
	for {
		select {
		case l, ok := <-c.lines:
			if strings.HasPrefix(l, prefix) {
				return l
			}
			for _, s := range skip {
				if ok && strings.HasPrefix(l, s) {
					continue next
				}
			}
			c.t.Fatalf("%s: said %q (open %v), want %q", c.name, l, ok, prefix)
		case <-deadline:
			c.t.Fatalf("%s: silent, want %q", c.name, prefix)
		}
	}
}
