// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
	"github.com/doorbell-net/doorbell/internal/env"
)

// The tests of this file need an NVIDIA GPU and DOORBELL_CUDA_TEST=1:
//
//	CGO_ENABLED=0 go test -c -o cuda.test ./internal/device/cuda
//	DOORBELL_CUDA_TEST=1 ./cuda.test -test.v -test.run '^TestGPU' -test.timeout 2m

func needGPU(t testing.TB) {
	t.Helper()
	if on, err := env.GPUs.Get(nil); err != nil || !on {
		t.Skipf("%s is not 1: there may be no GPU here", env.GPUs.Name())
	}
}

func openGPU(t testing.TB, o cuda.Options) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestGPUConformance(t *testing.T) {
	needGPU(t)
	for _, o := range []cuda.Options{{Ranks: 1}, {Ranks: 2}, {Shared: true}} {
		t.Run(fmt.Sprintf("ranks=%d,shared=%v", o.Ranks, o.Shared), func(t *testing.T) {
			devicetest.Run(t, func(t testing.TB) device.Device { return openGPU(t, o) })
		})
	}
}

// failEnv has TestGPUFails run its failures in this process, which has no GPU afterwards.
const failEnv = "TEST_FAIL_HERE"

// TestGPUFails has each failure in a process of its own, one after another: each finds the GPU free again.
func TestGPUFails(t *testing.T) {
	needGPU(t)
	if os.Getenv(failEnv) != "" {
		devicetest.RunFailures(t, func(t testing.TB) device.Device { return openGPU(t, cuda.Options{}) })
		return
	}
	for i := range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], fmt.Sprintf("-test.run=^TestGPUFails$/^%d$", i), "-test.v")
		cmd.Env = append(os.Environ(), failEnv+"=1")
		start := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("failure %d: %v\n%s", i, err, out)
		}
		t.Logf("failure %d, its process: %v", i, time.Since(start))
	}
}

// TestGPUCaps prints what there is, and what each kernel takes.
func TestGPUCaps(t *testing.T) {
	needGPU(t)
	d := openGPU(t, cuda.Options{})
	defer shut(t, d.Close)
	t.Logf("\n%s", d.Caps())
	for _, k := range gpu.Codes() {
		blocks, err := d.CooperativeBlocks(k, 8)
		t.Logf("%s: %d blocks of 8 warps are resident %v; %s", k.Name, blocks, err, d.Describe(k))
	}
}

// TestGPURanks has as many ranks as there are eighths of the GPU run grids that wait for one another, each filling its share.
func TestGPURanks(t *testing.T) {
	needGPU(t)
	const ranks = 8
	var devs [ranks]*cuda.Device
	var streams [ranks]device.Stream
	words := make([]device.Memory, ranks)
	late := make([]device.Memory, ranks)
	for r := range ranks {
		devs[r] = openGPU(t, cuda.Options{GPU: cuda.Index(0), Ranks: ranks})
		streams[r] = devs[r].NewStream()
		var err error
		if words[r], err = devs[r].Alloc(4); err != nil {
			t.Fatal(err)
		}
		if late[r], err = devs[r].Alloc(4); err != nil {
			t.Fatal(err)
		}
	}
	blocks, err := devs[0].CooperativeBlocks(devicetest.PairKernel.Code(), 32)
	if err != nil {
		t.Fatal(err)
	}
	g := device.Grid{Blocks: blocks, Warps: 32, Cooperative: true}
	for r := range ranks { // each waits for the next one, the last for the first
		next, err := devs[r].Import(words[(r+1)%ranks].Handle())
		if err != nil {
			t.Fatal(err)
		}
		defer shut(t, next.Free)
		a := devicetest.PairArgs{Mine: word32(words[r]), Theirs: word32(next), Late: word32(late[r]), Patience: uint64(5 * time.Second)}
		if err := streams[r].Launch(devicetest.PairKernel.Bind(a), g); err != nil {
			t.Fatal(err)
		}
	}
	for r := range ranks {
		if err := within(t, streams[r]); err != nil {
			t.Fatal(err)
		}
		var b [4]byte
		if err := late[r].Read(0, b[:]); err != nil || b != [4]byte{} {
			t.Errorf("rank %d: %x of %d blocks did not see the next rank's grid (%v)", r, b, blocks, err)
		}
	}
	t.Cleanup(func() {
		for r := range ranks {
			for _, f := range []func() error{streams[r].Close, words[r].Free, late[r].Free, devs[r].Close} {
				shut(t, f)
			}
		}
	})
}

func TestGPUOrder(t *testing.T) {
	needGPU(t)
	checkOrder(t, [2]*cuda.Device{openGPU(t, cuda.Options{Ranks: 2}), openGPU(t, cuda.Options{Ranks: 2})})
}

// TestGPUBadInput: code for another GPU and grids that cannot be resident are refused by name, and the device is none the worse.
func TestGPUBadInput(t *testing.T) {
	needGPU(t)
	d := openGPU(t, cuda.Options{})
	s := d.NewStream()
	k := kernelOf("Foreign", foreign)
	err := s.Launch(k.Bind(struct{}{}), one)
	says(t, err, "kernel Foreign for sm_121", "compute capability")
	t.Log(err)
	n, err := d.CooperativeBlocks(nothingKernel.Code(), 32)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Launch(nothingKernel.Bind(struct{}{}), device.Grid{Blocks: n + 1, Warps: 32, Cooperative: true})
	says(t, err, "cannot be resident")
	t.Log(err)
	var all []device.Memory
	for err = nil; err == nil; { // until the GPU is full
		var m device.Memory
		if m, err = d.Alloc(20 << 30); err == nil {
			all = append(all, m)
		}
	}
	if !errors.Is(err, device.ErrOutOfMemory) || len(all) == 0 {
		t.Errorf("after %d pieces of 20 GiB: %v, want ErrOutOfMemory", len(all), err)
	}
	t.Log(err)
	for _, m := range all {
		shut(t, m.Free)
	}
	if err := s.Launch(nothingKernel.Bind(struct{}{}), device.Grid{Blocks: n, Warps: 32, Cooperative: true}); err != nil || within(t, s) != nil {
		t.Errorf("after all that was refused: %v", err)
	}
	shut(t, s.Close)
	shut(t, d.Close)
}

// TestGPUOtherProcess has kernels of two processes on one GPU write each other's memory and wait for each other.
func TestGPUOtherProcess(t *testing.T) {
	needGPU(t)
	if os.Getenv(otherEnv) != "" {
		beOther(t, openGPU(t, cuda.Options{Shared: true}))
		return
	}
	start := time.Now()
	meetOther(t, openGPU(t, cuda.Options{Shared: true}), "TestGPUOtherProcess")
	t.Logf("it took %v", time.Since(start))
}

// TestGPUPeers has kernels of two GPUs write each other's memory and wait for each other.
func TestGPUPeers(t *testing.T) {
	needGPU(t)
	first := openGPU(t, cuda.Options{GPU: cuda.Index(0)})
	defer shut(t, first.Close)
	if first.Caps().Count < 2 {
		t.Skip("there is one GPU, this test needs two")
	}
	other := openGPU(t, cuda.Options{GPU: cuda.Index(1)})
	defer shut(t, other.Close)
	var mine, theirs [2]device.Memory
	for i, d := range []*cuda.Device{first, other} {
		mine[i] = must[device.Memory](t)(d.Alloc(1 << 20))
	}
	theirs[0], theirs[1] = must[device.Memory](t)(first.Import(mine[1].Handle())), must[device.Memory](t)(other.Import(mine[0].Handle()))
	s, o := first.NewStream(), other.NewStream()
	const n = 1<<20 - 8
	for i, st := range []device.Stream{s, o} {
		a := devicetest.FillArgs{To: theirs[i].Ptr().Byte(8), Bytes: n, Value: uint32(i + 1)}
		if err := st.Launch(devicetest.FillKernel.Bind(a), device.Grid{Blocks: 8, Warps: 8}); err != nil {
			t.Fatal(err)
		}
	}
	for i, st := range []device.Stream{s, o} {
		got := make([]byte, n)
		if err := errors.Join(within(t, st), mine[1-i].Read(8, got)); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{byte(i + 1)}, n)) {
			t.Errorf("what GPU %d wrote to the other is not there: %x... (%v)", i, got[:8], err)
		}
	}
	g := device.Grid{Blocks: 16, Warps: 4, Cooperative: true}
	for i, st := range []device.Stream{s, o} {
		a := devicetest.PairArgs{Mine: word32(mine[i]), Theirs: word32(theirs[i]), Late: word32(mine[i]).At(1), Patience: uint64(5 * time.Second)}
		if err := st.Launch(devicetest.PairKernel.Bind(a), g); err != nil {
			t.Fatal(err)
		}
	}
	for i, st := range []device.Stream{s, o} {
		got := make([]byte, 8)
		if err := errors.Join(within(t, st), mine[i].Read(0, got)); err != nil || got[0] != 16 || got[4] != 0 {
			t.Errorf("GPU %d: of 16 blocks %d did not see the other's (%v)", i, got[4], err)
		}
	}
	for _, f := range []func() error{s.Close, o.Close, theirs[0].Free, theirs[1].Free, mine[0].Free, mine[1].Free} {
		shut(t, f)
	}
}

// BenchmarkGPU is what calls cost.
func BenchmarkGPU(b *testing.B) {
	needGPU(b)
	d := openGPU(b, cuda.Options{})
	defer shut(b, d.Close)
	s := d.NewStream()
	defer shut(b, s.Close)
	host, err1 := d.AllocHost(16 << 20)
	m, err2 := d.Alloc(16 << 20)
	if err := errors.Join(err1, err2); err != nil {
		b.Fatal(err)
	}
	defer shut(b, host.Free)
	defer shut(b, m.Free)
	args := devicetest.FillArgs{To: m.Ptr(), Bytes: 1}
	launch := func(b *testing.B) {
		if err := s.Launch(devicetest.FillKernel.Bind(args), one); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("launch", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			launch(b)
		}
	})
	b.Run("launch+wait", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			launch(b)
			if err := s.Wait(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, n := range []int{8, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20} {
		buf := make([]byte, n)
		for _, c := range []struct {
			name string
			f    func() error
		}{
			{"write", func() error { return m.Write(0, buf) }},
			{"read", func() error { return m.Read(0, buf) }},
			{"h2d", func() error { return errors.Join(s.Copy(m.Ptr(), host.Ptr(), n), s.Wait(b.Context())) }},
			{"d2h", func() error { return errors.Join(s.Copy(host.Ptr(), m.Ptr(), n), s.Wait(b.Context())) }},
		} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					if err := c.f(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// TestGPUBeside is what calls take beside a kernel that fills the GPU and waits for the host: none waits for it.
func TestGPUBeside(t *testing.T) {
	needGPU(t)
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%v", shared), func(t *testing.T) {
			checkBeside(t, openGPU(t, cuda.Options{Patience: 50 * time.Millisecond, Shared: shared}))
		})
	}
}

func checkBeside(t *testing.T, d *cuda.Device) {
	defer shut(t, d.Close)
	m, err := d.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := d.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	gateWord, err1 := d.AllocHost(4)
	late, err2 := d.Alloc(4)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	s := d.NewStream()
	blocks, err := d.CooperativeBlocks(devicetest.GateKernel.Code(), 32)
	if err != nil {
		t.Fatal(err)
	}
	g, err := d.Capture(func(s device.Stream) error {
		return errors.Join(s.Launch(nothingKernel.Bind(struct{}{}), one), s.Copy(m.Ptr(), m.Ptr().Byte(1<<19), 1<<19), s.Launch(nothingKernel.Bind(struct{}{}), one))
	})
	if err != nil {
		t.Fatal(err)
	}
	at := word32(gateWord)
	a := devicetest.GateArgs{Open: at, Late: word32(late), Patience: uint64(5 * time.Second)}
	if err := s.Launch(devicetest.GateKernel.Bind(a), device.Grid{Blocks: blocks, Warps: 32, Cooperative: true}); err != nil {
		t.Fatal(err)
	}
	var took []string
	time1 := func(what string, f func() error) {
		start := time.Now()
		if err := f(); err != nil {
			t.Errorf("%s beside a kernel: %v", what, err)
		}
		took = append(took, fmt.Sprintf("%s %v", what, time.Since(start).Round(time.Microsecond)))
	}
	buf := make([]byte, 1<<20)
	time1("write 1 MiB", func() error { return m.Write(0, buf) })
	time1("read 1 MiB", func() error { return m.Read(0, buf) })
	time1("read 4 B", func() error { return m.Read(0, buf[:4]) })
	time1("free 1 MiB", dead.Free)
	var more device.Memory
	time1("alloc 1 MiB", func() (err error) { more, err = d.Alloc(1 << 20); return err })
	time1("alloc host 64 KiB", func() error {
		h, err := d.AllocHost(64 << 10)
		return errors.Join(err, h.Free())
	})
	if fd := more.Handle().FD; fd >= 0 {
		time1("import 1 MiB", func() error {
			m, err := d.Import(device.Handle{FD: fd, Bytes: 1 << 20})
			return errors.Join(err, m.Free())
		})
		time1("import 4 bytes of the host", func() error {
			m, err := d.Import(device.Handle{FD: gateWord.Handle().FD, Bytes: 4})
			return errors.Join(err, m.Free())
		})
	}
	beside := d.NewStream()
	for _, what := range []string{"first replay", "second replay"} {
		time1(what, func() error { return beside.Replay(g) })
	}
	time1("close a graph", g.Close)
	time1("new stream", func() error { return d.NewStream().Close() })
	if _, err := d.AllocHost(64 << 20); !errors.Is(err, device.ErrBusy) {
		t.Errorf("pinning 64 MiB beside a kernel: %v, want ErrBusy", err)
	}
	if !d.Busy() || s.Record().Done() {
		t.Error("the kernel has ended by itself")
	}
	gpu.Store(at, 1, gpu.Release, gpu.ScopeSys)
	if err := errors.Join(within(t, s), within(t, beside), beside.Close()); err != nil {
		t.Fatal(err)
	}
	t.Log(took)
	if d.Busy() {
		t.Error("busy when nothing runs")
	}
	for _, f := range []func() error{s.Close, m.Free, more.Free, gateWord.Free, late.Free} {
		shut(t, f)
	}
}
