// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package moe_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/soft"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
)

// driver is the test double of NVIDIA's driver that package cuda has, loaded in its place. It runs the kernels on dev.
type driver struct {
	testing.TB
	lib *ffi.Library
	dev *soft.Device

	mu   sync.Mutex
	args map[string][][]byte // that each kernel came with, by name
}

// kernels is what the double has names of.
var kernels = map[string]func(args []byte) gpu.Call{
	"LLCount": bind(moe.LLCountKernel), "LLSend": bind(moe.LLSendKernel), "LLReceive": bind(moe.LLReceiveKernel),
	"LLReturn": bind(moe.LLReturnKernel), "LLCombine": bind(moe.LLCombineKernel), "experts": bind(experts),
}

func bind[A any](k gpu.Kernel[A]) func([]byte) gpu.Call {
	return func(args []byte) gpu.Call {
		a := new(A)
		to := gpu.Slice(gpu.Cast[byte](gpu.PtrTo(a)), int(gpu.SizeOf[A]()))
		if len(args) != len(to) {
			panic(fmt.Sprintf("kernel %s: its PTX takes %d bytes of arguments, its Go struct has %d", k.Name(), len(args), len(to)))
		}
		copy(to, args)
		return k.Bind(*a)
	}
}

// TestReplaysOverDriver: on the cuda device a graph records six launches on each rank, and a replay is one call of the
// driver that brings the same arguments each time; what comes of it is right all the same.
func TestReplaysOverDriver(t *testing.T) { overDriver(t, replayOverDriver) }

// TestRecoverOverDriver: on the cuda device too, ranks go on without one that is lost, in new windows.
func TestRecoverOverDriver(t *testing.T) { overDriver(t, recoverOverDriver) }

// overDriver runs the test that calls it again, f in it, with the double where the driver would be found.
func overDriver(t *testing.T, f func(t *testing.T, d *driver)) {
	const inDouble = "MOE_TEST_IN_DOUBLE"
	if os.Getenv(inDouble) != "" {
		withDriver(t, f)
		return
	}
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("there is no gcc, which the test double of the driver is made with")
	}
	dir := t.TempDir()
	out, err := exec.Command(cc, "-O1", "-shared", "-fPIC", "-pthread", "-o", filepath.Join(dir, "libcuda.so.1"), "../internal/device/cuda/testdata/double/libcuda.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=60s")
	again.Env = append(os.Environ(), inDouble+"=1", "LD_LIBRARY_PATH="+dir)
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v:\n%s", err, out)
	}
}

func withDriver(t *testing.T, f func(t *testing.T, d *driver)) {
	d := &driver{TB: t, dev: soft.New(soft.Options{}), args: map[string][][]byte{}}
	var err error
	if d.lib, err = ffi.Open("libcuda.so.1"); err != nil {
		t.Fatal(err)
	}
	d.ask("double_reset")
	for _, c := range gpu.Codes() {
		c.Cubins = nil // the double reads PTX
	}
	stop := make(chan struct{})
	var serving sync.WaitGroup
	serving.Go(func() { d.serve(stop) })
	defer func() {
		close(stop)
		serving.Wait()
		if err := d.dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	f(t, d)
}

func recoverOverDriver(t *testing.T, _ *driver) {
	o := moe.Options{MaxTokens: 5, Hidden: 64, TopK: 3, Experts: 9}
	w := worldOf(t, 3, doorbell.Options{Device: "cuda", Log: quiet()}, o, one)
	defer w.close()
	p := problem(spread(t, 1, 3, o), o.Hidden, 5, 1)
	if err := w.check(p, ref.ExpertFn); err != nil {
		t.Fatal(err)
	}
	if err := w.comms[2].Close(); err != nil {
		t.Error(err)
	}
	s, err := solveWithout(p, moe.BF16, ref.ExpertFn, []int{2})
	if err != nil {
		t.Fatal(err)
	}
	if err := each(2, func(r int) error {
		st := w.comms[r].Stream()
		defer st.Close()
		one, err := w.step(s, r, st)
		if err != nil {
			return err
		}
		if err := lostOnly(one.fused(), []int{2}); err != nil {
			return err
		}
		if err := w.recover(r, []int{0, 1}); err != nil {
			return err
		}
		w.bufs[r].Measure(true)
		if err := one.fused(); err != nil {
			return err
		}
		got, err := w.bufs[r].Stats()
		if err == nil && got.LSA.Messages+got.GIN.Messages == 0 {
			err = fmt.Errorf("rank %d counted %+v", r, got)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func replayOverDriver(t *testing.T, d *driver) {
	const ranks, times = 2, 20
	w := worldOf(t, ranks, doorbell.Options{Device: "cuda"}, moe.Options{MaxTokens: 3, Hidden: 16, TopK: 2, Experts: 5, Copies: 2}, one)
	defer w.close()
	var recs [ranks]*recording
	var err error
	launches := d.count("cuLaunchKernel")
	for r := range recs {
		if recs[r], err = w.record(r, whole, w.opt.MaxTokens); err != nil {
			t.Fatal(err)
		}
	}
	if n := d.count("cuLaunchKernel") - launches; n != 6*ranks {
		t.Errorf("%d launches were recorded, want 6 on each of %d ranks", n, ranks)
	}
	launches = d.count("cuLaunchKernel")
	var all [times][]*solved
	for i := range all {
		all[i] = []*solved{draw(t, w, uint64(i+1))}
	}
	if err := each(ranks, func(r int) error {
		st := w.comms[r].Stream()
		defer st.Close()
		for i := range all {
			if err := recs[r].replay(r, st, all[i]); err != nil {
				return fmt.Errorf("replay %d: %w", i, err)
			}
		}
		return recs[r].Close()
	}); err != nil {
		t.Fatal(err)
	}
	if n, l := d.count("cuGraphLaunch"), d.count("cuLaunchKernel")-launches; n != ranks*times || l != 0 {
		t.Errorf("%d launches of graphs and %d of kernels, want %d and 0", n, l, ranks*times)
	}
	for name := range kernels {
		different := map[string]bool{}
		for _, a := range d.args[name] {
			different[string(a)] = true
		}
		if len(d.args[name]) != ranks*times || len(different) != ranks {
			t.Errorf("%s ran %d times with %d different arguments, want %d times with those of %d ranks", name, len(d.args[name]), len(different), ranks*times, ranks)
		}
	}
}

// ask calls a function of the double with texts or addresses.
func (d *driver) ask(name string, args ...any) uintptr {
	fn, err := d.lib.Symbol(name)
	if err != nil {
		d.Error(err)
		return 0
	}
	c := ffi.Call{Fn: fn}
	for i, a := range args {
		switch a := a.(type) {
		case []byte:
			c.Args[i] = ffi.Addr(&a[0])
		case int:
			c.Args[i] = uintptr(a)
		}
	}
	c.Do()
	return c.Result
}

func (d *driver) count(what string) int { return int(d.ask("double_count", append([]byte(what), 0))) }

// serve runs each kernel that comes to the head of a stream, as the double hands it out: its number, blocks, threads, whether
// it is cooperative, bytes of arguments, name and arguments.
func (d *driver) serve(stop chan struct{}) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-stop:
			return
		default:
		}
		const name, args = 40, 168
		b := make([]byte, args+4096)
		if d.ask("double_take", b, 20) != 0 {
			continue
		}
		word := func(i int) int { return int(binary.LittleEndian.Uint64(b[8*i:])) }
		text, _, _ := bytes.Cut(b[name:args], []byte{0})
		given := b[args : args+word(4)]
		d.mu.Lock()
		d.args[string(text)] = append(d.args[string(text)], given)
		d.mu.Unlock()
		running.Go(func() {
			code := 0
			if err := d.run(kernels[string(text)](given), device.Grid{Blocks: word(1), Warps: word(2) / 32}); err != nil {
				d.Error(err)
				code = 719 // CUDA_ERROR_LAUNCH_FAILED
			}
			d.ask("double_done", word(0), code)
		})
	}
}

func (d *driver) run(c gpu.Call, g device.Grid) error {
	s := d.dev.NewStream()
	defer s.Close()
	if err := s.Launch(c, g); err != nil {
		return err
	}
	return s.Wait(context.Background()) // its waits have deadlines
}
