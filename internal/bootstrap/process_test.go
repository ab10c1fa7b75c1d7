// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestProcessesGather(t *testing.T) {
	ch := startChildren(t, configs(4, nil))
	for _, c := range ch {
		c.expect("joined")
	}
	for round, n := range []int{1, 300, 0} {
		for _, c := range ch {
			c.tell("fds r%d %d", round, n)
		}
		for _, c := range ch {
			c.expect(fmt.Sprintf("fds r%d: <nil>", round))
		}
	}
	ch[2].tell("close")
	ch[2].expect("closed")
	for _, c := range []*child{ch[0], ch[1], ch[3]} {
		c.expect("departed 2")
		c.tell("gather after 10s")
	}
	for _, c := range []*child{ch[0], ch[1], ch[3]} {
		c.expect("gather after: lost=false departed=true", "begin", "departed")
		c.tell("close")
		c.expect("closed", "departed")
	}
}

func TestProcessKilled(t *testing.T) {
	ch := startChildren(t, configs(4, nil))
	for _, c := range ch {
		c.expect("joined")
	}
	for _, c := range ch[:3] {
		c.tell("gather pending 1m")
		c.expect("begin pending")
	}
	if err := ch[3].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, c := range ch[:3] {
		var lost, pending bool
		for !lost || !pending { // in either order
			l := c.expect("", "")
			switch {
			case strings.HasPrefix(l, "lost 3: "+ErrNoGoodbye.Error()), strings.HasPrefix(l, "lost 3: "+ErrAgreed.Error()):
				lost = true
			case strings.HasPrefix(l, "gather pending: lost=true") && strings.Contains(l, "rank 3 is lost"):
				pending = true
			default:
				t.Fatalf("%s: said %q", c.name, l)
			}
		}
		c.tell("gather later 1m")
		c.expect("gather later: lost=true", "begin")
	}
	for _, c := range ch[:3] {
		c.tell("close")
		c.expect("closed", "departed")
	}
}

func TestProcessStopped(t *testing.T) {
	ch := startChildren(t, configs(3, nil))
	for _, c := range ch {
		c.expect("joined")
	}
	if err := ch[1].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*child{ch[0], ch[2]} {
		c.tell("gather stopped 200ms")
	}
	for _, c := range []*child{ch[0], ch[2]} {
		c.expect("begin")
		if l := c.expect("gather stopped: lost=false departed=false"); !strings.Contains(l, "for rank 1 (of 3)") {
			t.Errorf("%s: %q", c.name, l)
		}
	}
	// It wakes up, takes part in that round alone, and is in step for the next.
	if err := ch[1].cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	ch[1].tell("gather stopped 10s")
	ch[1].expect("gather stopped: lost=false departed=false: <nil>", "begin")
	for _, c := range ch {
		c.tell("fds again 1")
	}
	for _, c := range ch {
		c.expect("fds again: <nil>")
	}
}

// Signals that interrupt system calls, all the time while ranks listen, dial and shake hands, change nothing.
func TestProcessSignalled(t *testing.T) {
	for _, cs := range [][]Config{configs(3, nil), tcpConfigs(t, 3, nil)} {
		first, second := startChild(t, cs[0]), startChild(t, cs[1])
		done := make(chan struct{})
		var wg sync.WaitGroup
		sent := 0
		hit := func(c *child, count *int) {
			tick := time.NewTicker(200 * time.Microsecond)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-tick.C:
					if c.cmd.Process.Signal([]syscall.Signal{syscall.SIGWINCH, syscall.SIGURG, syscall.SIGCHLD}[i%3]) == nil && count != nil {
						*count++
					}
				case <-done:
					return
				}
			}
		}
		wg.Go(func() { hit(first, &sent) })
		wg.Go(func() { hit(second, nil) })
		ch := []*child{first, second, startChild(t, cs[2])}
		for _, c := range ch {
			c.expect("joined")
			c.tell("fds signalled 3")
		}
		for _, c := range ch {
			c.expect("fds signalled: <nil>")
		}
		close(done)
		wg.Wait()
		if sent == 0 {
			t.Error("no signal was sent")
		}
	}
}

func TestProcessStrangerSpeaksHTTP(t *testing.T) {
	cs := configs(2, nil)
	first := startChild(t, cs[0])
	conn := dialRank(t, cs[0])
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); len(b) != 0 || err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("answered %q, %v", b, err)
	}
	second := startChild(t, cs[1])
	for _, c := range []*child{first, second} {
		c.expect("joined")
		c.tell("gather g 10s")
	}
	for _, c := range []*child{first, second} {
		c.expect("gather g: lost=false departed=false: <nil>", "begin")
	}
}

func TestProcessWrongToken(t *testing.T) {
	cs := configs(2, nil)
	bad := cs[1]
	bad.Token = []byte("other")
	first := startChild(t, cs[0])
	wrong := startChild(t, bad)
	if l := wrong.expect("join failed:"); !strings.Contains(l, "token differs") || !strings.Contains(l, fmt.Sprintf("rank 0 (pid %d)", first.cmd.Process.Pid)) {
		t.Errorf("%q", l)
	}
	right := startChild(t, cs[1])
	first.expect("joined")
	right.expect("joined")
}

func TestProcessNeverComes(t *testing.T) {
	cs := configs(4, func(c *Config) { c.Timeout = time.Second })
	for _, c := range startChildren(t, cs[:2]) {
		want := fmt.Sprintf("for ranks 2, 3 (of 4) at %s: not there", cs[0].Addr)
		if l := c.expect("join failed:"); !strings.Contains(l, want) {
			t.Errorf("%s: %q, want %q", c.name, l, want)
		}
	}
}

func TestProcessesClaimOneRank(t *testing.T) {
	cs := configs(2, nil)
	a, b := startChild(t, cs[1]), startChild(t, cs[1])
	for _, c := range []*child{a, b} {
		l := c.expect("join failed:")
		if !strings.Contains(l, "rank 1 is claimed by two processes") || !strings.Contains(l, fmt.Sprint("pid ", a.cmd.Process.Pid)) || !strings.Contains(l, fmt.Sprint("pid ", b.cmd.Process.Pid)) {
			t.Errorf("%s: %q", c.name, l)
		}
	}
}

// A rank that is stopped for longer than the others put up with is lost to them. When it wakes it does not blame them:
// it learns that it is out.
func TestProcessStoppedForLong(t *testing.T) {
	ch := startChildren(t, configs(3, func(c *Config) { c.Suspect = time.Second }))
	for _, c := range ch {
		c.expect("joined")
	}
	if err := ch[1].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*child{ch[0], ch[2]} {
		c.expect("lost 1: ")
		c.tell("epoch")
		c.expect("epoch 1 ")
	}
	if err := ch[1].cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if l := ch[1].expect("lost "); !strings.Contains(l, ErrCutOff.Error()) || !strings.Contains(l, "agree that this one is lost") {
			t.Errorf("rank 1: %s", l)
		}
	}
	ch[1].tell("epoch")
	ch[1].expect("epoch 0 ")
}
