// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// twins are kernels of package moe in CUDA C++. swap puts them in the place of ours, and ours back: not while any is launched.
type twins struct {
	ptx    string       // for a GPU
	lib    *ffi.Library // for the CPU
	swap   []func()
	theirs bool // the twins are in place
}

// twinsOf are those of a file: on a GPU from its PTX, which is read before the device loads its kernels; on the software device
// from what g++ makes of it.
func twinsOf(t *testing.T, file, device string) *twins {
	t.Helper()
	if device == "cuda" {
		return &twins{ptx: string(must(os.ReadFile(file + ".ptx"))(t))}
	}
	if gpu.WarpSize != 1 {
		t.Skip("addresses are numbers in lockstep, which C++ can't read")
	}
	cc, err := exec.LookPath("g++")
	if err != nil {
		t.Skip("there is no g++, which makes the twins run on the CPU")
	}
	so := filepath.Join(t.TempDir(), file+".so")
	out, err := exec.Command(cc, "-x", "c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC", "-o", so, source(file+".cu")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return &twins{lib: must(ffi.Open(so))(t)}
}

// source is where a file of this package lies: here, or, beside a test that was built for another machine, where bundle.sh puts it.
func source(file string) string {
	if _, err := os.Stat(file); err != nil {
		return filepath.Join("bench", "gpu", file)
	}
	return file
}

// twin adds the twin of a kernel.
func twin[A any](t *testing.T, all *twins, k *gpu.Kernel[A], fn func(gpu.Thread, A)) {
	t.Helper()
	if !all.onGPU() {
		at := must(all.lib.Symbol(k.Name()))(t)
		fn = func(th gpu.Thread, a A) {
			if th.Warp() > 0 {
				return // the block's first warp runs all of it
			}
			args := new(A) // where C++ may keep its address
			*args = a
			(&ffi.Call{Fn: at, Args: [ffi.MaxArgs]uintptr{ffi.Addr(args), uintptr(th.Block()), uintptr(th.Blocks()), 32 * uintptr(th.Warps())}}).Do()
			runtime.KeepAlive(args)
		}
	}
	other := gpu.NewKernel(k.Name(), fn, all.ptx)
	all.swap = append(all.swap, func() { *k, other = other, *k })
}

// onDevices runs f with the twins of a file, over the software device and, where there is one, a GPU.
func onDevices(t *testing.T, file string, f func(t *testing.T, w *twins, device string)) {
	for _, device := range []string{"soft", "cuda"} {
		t.Run(device, func(t *testing.T) {
			if device == "cuda" {
				needGPU(t)
			}
			f(t, twinsOf(t, file, device), device)
		})
	}
}

// anyExperts is so many selections of each rank: also none, and one again.
func anyExperts(t *testing.T, ranks, n, experts int) [][]int32 {
	random, all := testenv.Random(t), make([][]int32, ranks)
	for r := range all {
		for range n {
			all[r] = append(all[r], random.Int32N(int32(experts)+1)-1)
		}
	}
	return all
}

func (w *twins) onGPU() bool { return w.lib == nil }

// exchange puts the others in place.
func (w *twins) exchange() {
	for _, f := range w.swap {
		f()
	}
	w.theirs = !w.theirs
}

// ranks runs f on each rank at once.
func ranks(n int, f func(r int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { errs[r] = f(r) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// compare runs several rounds on each rank with our kernels and then, in the same buffers, with the twins: what they find there
// is another round's. run returns what it has left.
func (w *twins) compare(t *testing.T, n int, run func(r int, round uint64) ([]byte, error)) {
	t.Helper()
	var left [2][3][][]byte
	for who := range left {
		for round := range left[who] {
			left[who][round] = make([][]byte, n)
			check(t, ranks(n, func(r int) (err error) {
				left[who][round][r], err = run(r, uint64(round))
				return err
			}))
		}
		w.exchange()
	}
	for round := range left[0] {
		for r := range n {
			if ours, theirs := left[0][round][r], left[1][round][r]; len(ours) == 0 || !bytes.Equal(ours, theirs) {
				t.Errorf("round %d, rank %d: twins leave other bytes: %s", round, r, firstDifference(ours, theirs))
			}
		}
	}
}

func firstDifference(a, b []byte) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("byte %d of %d is %#02x, of ours %#02x", i, len(a), b[i], a[i])
		}
	}
	return fmt.Sprintf("%d, of ours %d", len(b), len(a))
}

// stopwatch times what is on a rank's stream by the device's clock, from when all ranks' streams have come to its beginning and
// caches hold nothing of what is timed.
type stopwatch struct {
	c            *doorbell.Comm
	st           *doorbell.Stream
	dc           *doorbell.DevComm
	stamps, much *doorbell.Buffer
}

const most = 8 // stamps

// newStopwatch is collective.
func (w *twins) newStopwatch(ctx context.Context, c *doorbell.Comm, st *doorbell.Stream) (*stopwatch, error) {
	flush := 64
	if w.onGPU() {
		flush = 256 << 20 / c.Size() // the ranks' together empty its caches
	}
	dc, err1 := c.DevComm(ctx, doorbell.Needs{Contexts: 1, Barriers: 1})
	stamps, err2 := c.Alloc(most * int(gpu.SizeOf[kernels.Stamp]()))
	much, err3 := c.Alloc(flush)
	return &stopwatch{c, st, dc, stamps, much}, errors.Join(err1, err2, err3)
}

func (w *stopwatch) stamp(i int, together int32) error {
	at := gpu.Cast[kernels.Stamp](w.stamps.Ptr()).At(i)
	return doorbell.Launch(w.st, kernels.StampTimeKernel, doorbell.Grid{Blocks: 1, Warps: 1}, kernels.StampArgs{DC: w.dc.Device(), At: at, Together: together})
}

// times is how long each of the phases takes that are queued one after another.
func (w *stopwatch) times(phases []func() error, wait func() error) ([]time.Duration, error) {
	grid := doorbell.Grid{Blocks: max(w.c.Warps()/32, 1), Warps: 32}
	err := errors.Join(doorbell.Launch(w.st, kernels.FillKernel, grid, kernels.FillArgs{Span: kernels.Span{At: w.much.Ptr(), Bytes: uint64(w.much.Len())}}), w.stamp(0, 1))
	for i, queue := range phases {
		err = errors.Join(err, queue(), w.stamp(i+1, 0))
	}
	if err = errors.Join(err, wait()); err != nil {
		return nil, err
	}
	at := make([]kernels.Stamp, len(phases)+1)
	if err := doorbell.Read(w.c, at, gpu.Cast[kernels.Stamp](w.stamps.Ptr())); err != nil {
		return nil, err
	}
	if at[0].Status != gin.OK {
		return nil, fmt.Errorf("rank %d: the ranks' streams did not come together: %v", w.c.Rank(), at[0].Status)
	}
	took := make([]time.Duration, len(phases))
	for i := range took {
		took[i] = time.Duration(at[i+1].Ns - at[i].Ns)
	}
	return took, nil
}

// pairs measures phases with our kernels and with their twins in turn, and prints a line for tools/measure of each, where there is a
// GPU: of a turn, what the slowest rank took. run runs and times the phases on a rank.
func (w *twins) pairs(t *testing.T, n int, name string, phases []string, run func(r int) ([]time.Duration, error)) {
	turns, warmup := 24, 2
	if !w.onGPU() {
		turns, warmup = 1, 0
	}
	us := make([][2][]float64, len(phases))
	for i := range warmup + turns {
		for who := range 2 {
			took := make([][]time.Duration, n)
			check(t, ranks(n, func(r int) (err error) { took[r], err = run(r); return err }))
			w.exchange()
			if i < warmup {
				continue
			}
			for p := range phases {
				slowest := took[0][p]
				for _, of := range took {
					slowest = max(slowest, of[p])
				}
				us[p][who] = append(us[p][who], float64(slowest)/1e3)
			}
		}
	}
	for p, phase := range phases {
		if !w.onGPU() {
			break
		}
		fmt.Printf("pair: %s\n", must(json.Marshal(map[string]any{"case": name + ", " + phase + ", twin", "ours": us[p][0], "theirs": us[p][1]}))(t))
	}
}
