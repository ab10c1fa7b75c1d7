// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
	_ "github.com/doorbell-net/doorbell/netplugin/fault"
)

// testBound ends what a correct run never waits for.
var testBound = func() time.Duration {
	if testenv.Long() {
		return 5 * time.Minute
	}
	return 20 * time.Second
}()

func TestMain(m *testing.M) {
	flag.Parse()
	testenv.Rapid(25, 1000)
	code := m.Run()
	if left := leftovers(); code == 0 && len(left) > 0 && os.Getenv(plantEnv) == "" {
		fmt.Fprintf(os.Stderr, "goroutines of the module are left behind:\n%s\n", strings.Join(left, "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// leftovers are the stacks of goroutines in the module's code that is not a test's, after they had time to end.
func leftovers() []string {
	var own []string
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) { // sleep: nothing tells of a goroutine's end
		buf := make([]byte, 1<<20)
		own = own[:0]
		for s := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			for line := range strings.SplitSeq(s, "\n") {
				if strings.Contains(line, "doorbell-net/doorbell") && !strings.Contains(line, "doorbell_test.") && !strings.Contains(line, "_test.go") {
					own = append(own, s)
					break
				}
			}
		}
		if len(own) == 0 {
			break
		}
	}
	return own
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// logText collects what a communicator logs.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// local makes n ranks in this process; the test's end closes them.
func local(t testing.TB, n int, o doorbell.Options) []*doorbell.Comm {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = testBound
	}
	if o.Log == nil {
		o.Log = quiet()
	}
	cs, err := doorbell.Local(n, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range cs {
			if err := c.Close(); err != nil {
				t.Errorf("rank %d: %v", c.Rank(), err)
			}
		}
	})
	return cs
}

// rank is one rank of a test: a communicator, and where failures are told.
type rank struct {
	testing.TB
	*doorbell.Comm
	ctx context.Context
	st  *doorbell.Stream
}

var errTest = errors.New("the test gave up")

// fail ends this rank's part of the test.
func (r *rank) fail(format string, args ...any) {
	r.Helper()
	r.Errorf("rank %d: %s", r.Rank(), fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (r *rank) must(err error) {
	r.Helper()
	if err != nil {
		r.fail("%+v", err)
	}
}

// each runs f for all ranks at once. One that fails ends its communicator, so that the others do not wait for it.
func each(t testing.TB, cs []*doorbell.Comm, f func(r *rank)) {
	t.Helper()
	var wg sync.WaitGroup
	for _, c := range cs {
		wg.Go(func() { runRank(t, c, f) })
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func runRank(t testing.TB, c *doorbell.Comm, f func(r *rank)) {
	ok := false
	ctx, cancel := context.WithTimeout(context.Background(), testBound)
	defer func() {
		cancel()
		if !ok {
			c.Abort(errTest)
			c.Close()
		}
	}()
	f(&rank{TB: t, Comm: c, ctx: ctx})
	ok = true
}

func (r *rank) sync() { r.must(r.Barrier(r.ctx)) }

// fewer is how often something is done where networks that misbehave take their time, or the race detector does, of n times
// elsewhere.
func (r *rank) fewer(n int) int {
	if testenv.Race || strings.HasPrefix(r.Info().Net, "fault+") {
		return (n + 4) / 5
	}
	return n
}

func (r *rank) alloc(bytes int) *doorbell.Buffer {
	b, err := r.Alloc(bytes)
	r.must(err)
	return b
}

// window is a window over fresh memory.
func (r *rank) window(bytes int) *doorbell.Window {
	w, err := r.Register(r.ctx, r.alloc(bytes))
	r.must(err)
	return w
}

func (r *rank) devComm(n doorbell.Needs) *doorbell.DevComm {
	dc, err := r.DevComm(r.ctx, n)
	r.must(err)
	return dc
}

// drop closes what a program made, so that the next one starts clean.
func (r *rank) drop(things ...io.Closer) {
	for _, c := range things {
		r.must(c.Close())
	}
}

// kernel makes a kernel of a function, which the first lane of each warp runs; laneKernel has all lanes run it.
func kernel(name string, f func(gpu.Thread)) gpu.Kernel[struct{}] {
	return laneKernel(name, func(t gpu.Thread) {
		if t.Lane() == 0 {
			f(t)
		}
	})
}

func laneKernel(name string, f func(gpu.Thread)) gpu.Kernel[struct{}] {
	return gpu.NewKernel(name, func(t gpu.Thread, _ struct{}) { f(t) }, "")
}

// start launches f on the rank's stream, for the first lane of each warp; wait waits for what was launched.
func (r *rank) start(g doorbell.Grid, f func(gpu.Thread)) {
	r.Helper()
	r.launch(g, kernel(r.Name(), f))
}

// startLanes is start for all lanes.
func (r *rank) startLanes(g doorbell.Grid, f func(gpu.Thread)) {
	r.Helper()
	r.launch(g, laneKernel(r.Name(), f))
}

func (r *rank) launch(g doorbell.Grid, k gpu.Kernel[struct{}]) {
	r.Helper()
	if r.st == nil {
		r.st = r.Stream()
	}
	r.must(doorbell.Launch(r.st, k, g, struct{}{}))
}

func (r *rank) wait() {
	r.Helper()
	r.must(r.st.Wait(r.ctx))
}

// run runs f by one thread.
func (r *rank) run(f func(gpu.Thread)) {
	r.Helper()
	r.start(one, f)
	r.wait()
}

var one = doorbell.Grid{Blocks: 1, Warps: 1}

// expect is used in kernels: it fails the kernel when a status is not the one wanted.
func expect(s, want gin.Status, what string, args ...any) {
	if s != want {
		panic(fmt.Sprintf("%s: status %v, want %v", fmt.Sprintf(what, args...), s, want))
	}
}

func ok(s gin.Status, what string, args ...any) { expect(s, gin.OK, what, args...) }

// same fails a kernel when bytes differ.
func same(got, want []byte, what string, args ...any) {
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] != want[i] {
			panic(fmt.Sprintf("%s: byte %d of %d is %#x, want %#x", fmt.Sprintf(what, args...), i, len(got), got[i], want[i]))
		}
	}
}

const canary = 0xa5

func fill(b []byte, v byte) []byte {
	for i := range b {
		b[i] = v
	}
	return b
}

// pattern is byte i of what a rank sends.
func pattern(rank, i int) byte {
	x := uint32(rank+1)*2654435761 + uint32(i)*40503
	return byte(x>>13) | 1
}

func fillPattern(b []byte, rank int) []byte {
	for i := range b {
		b[i] = pattern(rank, i)
	}
	return b
}

// view is the host's view of n bytes of a window of this rank.
func view(w gin.Window, off, n int) []byte { return gpu.Slice(w.Base.Byte(uint64(off)), n) }
