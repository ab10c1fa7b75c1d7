// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testBound ends what a correct run never waits for.
const testBound = 20 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(childMain())
	}
	checks := "40" // -rapid.checks and -rapid.seed on the command line override
	if os.Getenv("DOORBELL_LONG") == "1" {
		checks = "1000"
	}
	flag.Set("rapid.checks", checks)
	// The runtime's poller takes descriptors at its first use; leak checks are not to count them.
	if ln, err := net.Listen("unix", freshAddr()[len("unix:"):]); err == nil {
		ln.Close()
	}
	os.Exit(m.Run())
}

var addrCount atomic.Int64

func freshAddr() string {
	return fmt.Sprintf("unix:@doorbell-test-%d-%d", os.Getpid(), addrCount.Add(1))
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// testConfig is rank r of n at a fresh address if addr is empty.
func testConfig(r, n int, addr string) Config {
	return Config{Rank: r, Size: n, Addr: addr, Job: "job", Token: []byte("secret"), LayoutHash: 7, Version: 1, Timeout: testBound, Log: quiet()}
}

// joinAll runs one Join per config at once.
func joinAll(ctx context.Context, cs []Config) ([]Group, []error) {
	gs, errs := make([]Group, len(cs)), make([]error, len(cs))
	var wg sync.WaitGroup
	for i := range cs {
		wg.Go(func() { gs[i], errs[i] = Join(ctx, cs[i]) })
	}
	wg.Wait()
	return gs, errs
}

func configs(n int, edit func(*Config)) []Config {
	addr := freshAddr()
	cs := make([]Config, n)
	for r := range cs {
		cs[r] = testConfig(r, n, addr)
		if edit != nil {
			edit(&cs[r])
		}
	}
	return cs
}

// makers makes groups of either form; every test of Group runs over both.
var makers = map[string]func(t testing.TB, n int) []Group{
	"local": func(t testing.TB, n int) []Group {
		gs, err := Local(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range gs {
			g.(*group).timeout, g.(*group).log = testBound, quiet()
		}
		return gs
	},
	"join": func(t testing.TB, n int) []Group {
		return mustJoin(t, configs(n, nil))
	},
	// The ranks meet by TCP and find that they share a host.
	"meet": func(t testing.TB, n int) []Group { return mustJoin(t, tcpConfigs(t, n, nil)) },
	// Each rank takes itself for the only one of its host.
	"tcp": func(t testing.TB, n int) []Group {
		return mustJoin(t, tcpConfigs(t, n, func(c *Config) { c.bootID = fmt.Sprint("host ", c.Rank) }))
	},
}

func mustJoin(t testing.TB, cs []Config) []Group {
	gs, errs := joinAll(t.Context(), cs)
	for r, err := range errs {
		if err != nil {
			closeGroups(gs)
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	return gs
}

// freePort is one that nobody had a moment ago, and that the system gives to nobody who asks for any.
func freePort(t testing.TB) int {
	for range 1000 {
		port := 15000 + rand.IntN(15000)
		if ln, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			ln.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func tcpConfigs(t testing.TB, n int, edit func(*Config)) []Config {
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	return configs(n, func(c *Config) {
		c.Addr = addr
		if edit != nil {
			edit(c)
		}
	})
}

// both runs f over fresh groups of either form, closes them, and checks that nothing is left behind.
func both(t *testing.T, n int, f func(t *testing.T, gs []Group)) {
	for _, name := range []string{"local", "join", "meet"} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			gs := makers[name](t, n)
			t.Cleanup(func() { closeGroups(gs) })
			f(t, gs)
		})
	}
}

func closeGroups(gs []Group) {
	for _, g := range gs {
		if g != nil {
			g.Close()
		}
	}
}

// each calls f for all ranks at once and waits.
func each(gs []Group, f func(g Group)) {
	var wg sync.WaitGroup
	for _, g := range gs {
		wg.Go(func() { f(g) })
	}
	wg.Wait()
}

func openFDs() int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(d)
}

// ownGoroutines returns the stacks of goroutines in this package's code that is not a test's.
func ownGoroutines() []string {
	buf := make([]byte, 1<<20)
	var own []string
	for s := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		for line := range strings.SplitSeq(s, "\n") {
			if strings.Contains(line, "/internal/bootstrap/") && !strings.Contains(line, "_test.go") {
				own = append(own, s)
				break
			}
		}
	}
	return own
}

// checkLeaks fails the test if, after its other cleanups, there are goroutines of the package or more descriptors than
// now. A running notification may outlast Close, and nothing tells of its end: hence the polling.
func checkLeaks(t testing.TB) {
	before := openFDs()
	t.Cleanup(func() {
		deadline := time.Now().Add(3 * time.Second)
		for {
			fds, gor := openFDs(), ownGoroutines()
			if fds <= before && len(gor) == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("left behind: %d descriptors (before: %d), goroutines:\n%s", fds, before, strings.Join(gor, "\n\n"))
				return
			}
			time.Sleep(time.Millisecond) // sleep: goroutines and descriptors tell nobody that they ended
		}
	})
}

// memfd makes a memory file with the given text; the caller closes it.
func memfd(t testing.TB, text string) int {
	fd, err := unix.MemfdCreate("doorbell-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(fd, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
	return fd
}

func fdText(fd int) string {
	b := make([]byte, 256)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(b[:n])
}

func cloexec(fd int) bool {
	fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && fl&unix.FD_CLOEXEC != 0
}

// undisturbed checks that strangers' connections were dropped, and that the ranks go on.
func undisturbed[C net.Conn](t *testing.T, gs []Group, strangers []C) {
	t.Helper()
	for _, conn := range strangers {
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("not dropped: %v", err)
		}
		conn.Close()
	}
	each(gs, func(g Group) {
		if _, err := g.AllGather(t.Context(), "undisturbed", Blob{}); err != nil {
			t.Error(err)
		}
	})
}
