// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
	"github.com/doorbell-net/doorbell/internal/device/soft"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// double is a test double of the driver: a library of its own for each test, made from testdata/double.
type double struct {
	testing.TB
	path string
	lib  *ffi.Library
	dev  *soft.Device // runs the kernels

	mu      sync.Mutex
	streams []device.Stream // of dev, free
	stop    chan struct{}
	server  sync.WaitGroup // takes kernels
	kernels sync.WaitGroup // run
}

// library is the double, compiled once.
var library = sync.OnceValues(func() ([]byte, error) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "double")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	so := filepath.Join(dir, "libcuda.so")
	if out, err := exec.Command(cc, "-O1", "-shared", "-fPIC", "-pthread", "-o", so, "testdata/double/libcuda.c").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(so)
})

// newDouble makes a driver with one GPU of 8 multiprocessors and 1 GiB.
func newDouble(t testing.TB) *double {
	t.Helper()
	so, err := library()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no gcc, which the test double of the driver is made with")
	}
	if err != nil {
		t.Fatal(err)
	}
	d := &double{TB: t, path: filepath.Join(t.TempDir(), "libcuda.so.1"), dev: soft.New(soft.Options{}), stop: make(chan struct{})}
	if err := os.WriteFile(d.path, so, 0o755); err != nil {
		t.Fatal(err)
	}
	if d.lib, err = ffi.Open(d.path); err != nil {
		t.Fatal(err)
	}
	d.ask("double_reset")
	d.server.Go(d.serve)
	t.Cleanup(d.end)
	return d
}

// end holds that nothing was left or done that never may be.
func (d *double) end() {
	close(d.stop)
	d.server.Wait()
	d.kernels.Wait()
	for _, s := range d.streams {
		if err := s.Close(); err != nil {
			d.Error(err)
		}
	}
	if err := d.dev.Close(); err != nil {
		d.Error(err)
	}
	for _, what := range []string{"null stream", "waited", "memories", "handles", "graphs"} {
		if n := d.count(what); n != 0 && !d.Failed() {
			d.Errorf("%s: %d at the end, want none", what, n)
		}
	}
}

// ask calls a function of the double. Texts are passed as C strings.
func (d *double) ask(name string, args ...any) uintptr {
	fn, err := d.lib.Symbol(name)
	if err != nil {
		d.Fatal(err)
	}
	c := ffi.Call{Fn: fn}
	for i, a := range args {
		switch a := a.(type) {
		case string:
			b := append([]byte(a), 0)
			c.Args[i] = ffi.Addr(&b[0])
			defer runtime.KeepAlive(b)
		case int:
			c.Args[i] = uintptr(a)
		case uintptr:
			c.Args[i] = a
		}
	}
	c.Do()
	return c.Result
}

func (d *double) set(what string, value int)       { d.ask("double_set", what, value) }
func (d *double) fail(name string, nth, code int)  { d.ask("double_fail", name, nth, code) }
func (d *double) count(what string) int            { return int(d.ask("double_count", what)) }
func (d *double) open(o cuda.Options) *cuda.Device { d.Helper(); return d.openOr(d.try(o)) }
func (d *double) try(o cuda.Options) (*cuda.Device, error) {
	o.Library = d.path
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return cuda.Open(o)
}

// pause keeps kernels from being begun until the function that it returns is called.
func (d *double) pause() (resume func()) {
	close(d.stop)
	d.server.Wait()
	return func() {
		d.stop = make(chan struct{})
		d.server.Go(d.serve)
	}
}

// until waits until a count is what it shall be.
func (d *double) until(what string, n int) {
	d.Helper()
	for start := time.Now(); d.count(what) != n; runtime.Gosched() {
		if time.Since(start) > devicetest.Bound {
			d.Fatalf("%s: %d, want %d", what, d.count(what), n)
		}
	}
}

func (d *double) openOr(dev *cuda.Device, err error) *cuda.Device {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
	return dev
}

// running are the kernels of which the double knows what they do.
var running = map[string]func(args []byte) gpu.Call{
	"Count": binder(devicetest.CountKernel), "Meet": binder(devicetest.MeetKernel), "Rounds": binder(devicetest.RoundsKernel),
	"Step": binder(devicetest.StepKernel), "Pair": binder(devicetest.PairKernel), "Gate": binder(devicetest.GateKernel),
	"Fail": binder(devicetest.FailKernel), "Fill": binder(devicetest.FillKernel), "Nothing": binder(nothingKernel), "Fat": binder(nothingKernel), "Deep": binder(nothingKernel),
}

func binder[A any](k gpu.Kernel[A]) func(args []byte) gpu.Call {
	return func(args []byte) gpu.Call {
		a := new(A)
		if len(args) != len(bytesOf(a)) {
			panic(fmt.Sprintf("kernel %s: its PTX takes %d bytes of arguments, its Go struct has %d", k.Name(), len(args), len(bytesOf(a))))
		}
		copy(bytesOf(a), args)
		return k.Bind(*a)
	}
}

// nothingKernel is made as a variable of a package is, so that Open loads it.
var nothingKernel = gpu.NewKernel("Nothing", func(gpu.Thread, struct{}) {}, ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry Nothing()\n{\n\tret;\n}\n")

// serve runs what comes to the head of a stream, until the end.
func (d *double) serve() {
	const name, args, all = 40, 168, 168 + 4096
	for {
		select {
		case <-d.stop:
			return
		default:
		}
		b := make([]byte, all)
		if d.ask("double_take", ffi.Addr(&b[0]), 20) != 0 {
			continue
		}
		word := func(i int) int { return int(binary.LittleEndian.Uint64(b[8*i:])) }
		kernel, _, _ := bytes.Cut(b[name:args], []byte{0})
		g := device.Grid{Blocks: word(1), Warps: word(2) / 32, Cooperative: word(3) != 0}
		call := running[string(kernel)](b[args : args+word(4)])
		d.kernels.Go(func() {
			code := 0
			if err := d.run(call, g); err != nil {
				code = 719
			}
			d.ask("double_done", word(0), code)
		})
	}
}

func (d *double) run(c gpu.Call, g device.Grid) error {
	d.mu.Lock()
	var s device.Stream
	if n := len(d.streams); n > 0 {
		s, d.streams = d.streams[n-1], d.streams[:n-1]
	} else {
		s = d.dev.NewStream()
	}
	d.mu.Unlock()
	err := s.Launch(c, g)
	if err == nil {
		err = s.Wait(context.Background()) // each kernel of the suite has a deadline
	}
	if err != nil {
		return errors.Join(err, s.Close())
	}
	d.mu.Lock()
	d.streams = append(d.streams, s)
	d.mu.Unlock()
	return nil
}

// within waits for a stream.
func within(t testing.TB, s device.Stream) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), devicetest.Bound)
	defer cancel()
	err := s.Wait(ctx)
	if ctx.Err() != nil {
		t.Fatalf("the stream did not end: %v", err)
	}
	return err
}

var one = device.Grid{Blocks: 1, Warps: 1}

// gated is a kernel that holds its stream until open is called.
type gated struct {
	testing.TB
	stream     device.Stream
	word, late device.Memory
}

func gate(t testing.TB, dev *cuda.Device) *gated {
	t.Helper()
	g := &gated{TB: t, stream: dev.NewStream(), word: must[device.Memory](t)(dev.AllocHost(4)), late: must[device.Memory](t)(dev.Alloc(4))}
	a := devicetest.GateArgs{Open: word32(g.word), Late: word32(g.late), Patience: uint64(20 * time.Second)}
	if err := g.stream.Launch(devicetest.GateKernel.Bind(a), one); err != nil {
		t.Fatal(err)
	}
	return g
}

// release lets the kernel end.
func (g *gated) release() { gpu.Store(word32(g.word), 1, gpu.Release, gpu.ScopeSys) }

// open lets it end, waits for that, and gives all back.
func (g *gated) open() {
	g.Helper()
	g.release()
	if err := within(g, g.stream); err != nil {
		g.Error(err)
	}
	g.close()
}

func (g *gated) close() {
	g.Helper()
	shut(g, g.stream.Close)
	shut(g, g.word.Free)
	shut(g, g.late.Free)
}

func word32(m device.Memory) gpu.Ptr[uint32] { return gpu.Cast[uint32](m.Ptr()) }

func shut(t testing.TB, f func() error) {
	t.Helper()
	if err := f(); err != nil {
		t.Error(err)
	}
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
