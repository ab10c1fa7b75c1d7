// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
)

// header makes a module that is like no other of this process: devices load what was made before them, by tests that run again too.
func header(entries string) string {
	return fmt.Sprintf(".version 6.3\n.target sm_70\n.address_size 64\n// module %d\n%s", modules.Add(1), entries)
}

var modules atomic.Int64

// foreign is code for a GPU that is not here.
const foreign = ".version 8.8\n.target sm_121\n.address_size 64\n.visible .entry Foreign()\n{\n\tret;\n}\n"

func kernelOf(name, ptx string) gpu.Kernel[struct{}] {
	return gpu.NewKernel(name, func(gpu.Thread, struct{}) {}, ptx)
}

// TestLoading: kernels that are variables of a package are loaded when the device is opened, once for all ranks on the GPU;
// one that comes later is loaded by its launch, unless a kernel runs.
func TestLoading(t *testing.T) {
	d := newDouble(t)
	a := d.open(cuda.Options{Ranks: 2, Patience: 30 * time.Millisecond})
	loaded, linked := d.Count("cuModuleLoadDataEx"), d.Count("cuLinkComplete")
	if loaded < 2 { // the suite's and nothingKernel's
		t.Errorf("%d modules were loaded when the device was opened", loaded)
	}
	b := d.open(cuda.Options{Ranks: 2, Patience: 30 * time.Millisecond})
	g := gate(t, a)
	other := b.NewStream()
	if err := other.Launch(nothingKernel.Bind(struct{}{}), one); err != nil || within(t, other) != nil {
		t.Errorf("a kernel that is loaded does not run beside another: %v", err)
	}
	if n := d.Count("cuModuleLoadDataEx"); n != loaded {
		t.Errorf("%d modules were loaded for the second rank or by a launch", n-loaded)
	}
	late := kernelOf("Nothing", header(".visible .entry Nothing()\n{ ret; }\n"))
	err := other.Launch(late.Bind(struct{}{}), one)
	if !errors.Is(err, device.ErrBusy) {
		t.Errorf("code was loaded beside a kernel: %v", err)
	}
	says(t, err, "kernel Nothing", "Gate", "30ms")
	g.open()
	for range 2 {
		if err := other.Launch(late.Bind(struct{}{}), one); err != nil || within(t, other) != nil {
			t.Errorf("a kernel of its own: %v", err)
		}
	}
	if n := d.Count("cuModuleLoadDataEx"); n != loaded+1 {
		t.Errorf("one module was loaded %d times", n-loaded)
	}
	if n, made, gone := d.Count("cuLinkComplete")-linked, d.Count("cuLinkCreate_v2"), d.Count("cuLinkDestroy"); n != 1 || gone != made {
		t.Errorf("%d modules were linked (want 1), and of %d links in all %d destroyed", n, made, gone)
	}
	shut(t, other.Close)
	shut(t, a.Close)
	shut(t, b.Close)
}

// TestCubins: machine code for the GPU is loaded as it is, once for all kernels in it; where there is none, or the driver
// refuses it, PTX is compiled.
func TestCubins(t *testing.T) {
	const elf = "\x7fELF"
	for name, c := range map[string]struct {
		arch, fail    int
		loads, linked int
	}{
		"for this GPU": {90, 0, 1, 0},
		"for another":  {80, 0, 2, 2},
		"refused":      {90, 209, 3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t)
			dev := d.open(cuda.Options{})
			s := dev.NewStream()
			ptx := header(".visible .entry Nothing()\n{\n\tret;\n}\n.visible .entry Fat()\n{\n\tret;\n}\n")
			code := fmt.Sprintf("%s of module %d .entry Nothing() .entry Fat()", elf, modules.Load())
			loads, links := d.Count("cuModuleLoadDataEx"), d.Count("cuLinkComplete")
			if c.fail != 0 {
				d.FailCall("cuModuleLoadDataEx", 1, c.fail)
			}
			for _, kernel := range []string{"Nothing", "Fat"} {
				k := gpu.NewKernel(kernel, func(gpu.Thread, struct{}) {}, ptx, gpu.Cubin{Arch: c.arch, Code: code})
				if err := s.Launch(k.Bind(struct{}{}), one); err != nil || within(t, s) != nil {
					t.Fatalf("%s: %v", kernel, err)
				}
			}
			loads, links = d.Count("cuModuleLoadDataEx")-loads, d.Count("cuLinkComplete")-links
			if loads != c.loads || links != c.linked {
				t.Errorf("%d modules were loaded, %d of PTX (want %d and %d)", loads, links, c.loads, c.linked)
			}
			shut(t, s.Close)
			shut(t, dev.Close)
		})
	}
}

// TestVariants: a launch runs the entry that its arguments fit, and as many blocks may be counted on as each variant has.
func TestVariants(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	s := dev.NewStream()
	k := gpu.NewKernel("Nothing", func(gpu.Thread, uint64) {},
		header(".visible .entry Nothing()\n{\n\tret;\n}\n.visible .entry Fat()\n{\n\tret;\n}\n"))
	plain, err := dev.CooperativeBlocks(k.Code(), 8)
	k = k.Variant("Fat", func(a *uint64) bool { return *a == 7 })
	n, err2 := dev.CooperativeBlocks(k.Code(), 8)
	if plain <= n || n != 8 || err != nil || err2 != nil { // Fat has one on each multiprocessor
		t.Errorf("%d blocks are resident, and %d with the variant (%v, %v)", plain, n, err, err2)
	}
	for arg, want := range map[uint64]string{6: "", 7: "accepted of kernel Fat"} { // Fat has at most 8 warps
		err := s.Launch(k.Bind(arg), device.Grid{Blocks: 1, Warps: 9})
		if want != "" {
			says(t, err, want)
		} else if err != nil || within(t, s) != nil {
			t.Error(err)
		}
	}
	if err := s.Launch(k.Bind(7), one); err != nil || within(t, s) != nil {
		t.Error(err)
	}
	shut(t, s.Close)
	shut(t, dev.Close)
}

// TestBadKernels says what is wrong with a kernel, and harms no other.
func TestBadKernels(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	s := dev.NewStream()
	for _, c := range []struct {
		name, ptx string
		words     []string
	}{
		{"Bare", "", []string{"kernel Bare was not compiled for a GPU", "go generate"}},
		{"Broken", header("error: 42 is no instruction"), []string{"cuLinkAddData: CUDA_ERROR_INVALID_PTX (218)", "module of kernel Broken for sm_70", "capability 9.0", "ptxas: error: 42 is no instruction"}},
		{"Foreign", foreign, []string{"cuLinkAddData: CUDA_ERROR_NO_BINARY_FOR_GPU (209)", "module of kernel Foreign for sm_121, GPU of compute capability 9.0"}},
		{"Absent", header(".visible .entry Present()\n{ ret; }\n"), []string{"cuModuleGetFunction: CUDA_ERROR_NOT_FOUND (500)", "kernel Absent", "no entry"}},
	} {
		k := kernelOf(c.name, c.ptx)
		for range 2 { // the second time from memory
			says(t, s.Launch(k.Bind(struct{}{}), one), c.words...)
			_, err := dev.CooperativeBlocks(k.Code(), 1)
			says(t, err, c.words...)
		}
	}
	fat := kernelOf("Fat", header(".visible .entry Fat()\n{ ret; }\n"))
	says(t, s.Launch(fat.Bind(struct{}{}), device.Grid{Blocks: 1, Warps: 9}), "9 warps", "1 to 8", "kernel Fat", "32 registers")
	if n, err := dev.CooperativeBlocks(fat.Code(), 9); n != 0 || err != nil {
		t.Errorf("%d blocks that cannot run are resident (%v)", n, err)
	}
	if n, err := dev.CooperativeBlocks(fat.Code(), 8); n != 8 || err != nil { // one on each multiprocessor
		t.Errorf("%d blocks of Fat are resident, want 8 (%v)", n, err)
	}
	says(t, s.Launch(fat.Bind(struct{}{}), device.Grid{Blocks: 9, Warps: 8, Cooperative: true}), "9 blocks of 8 warps", "kernel Fat", "8 multiprocessors holds 8 blocks")
	if err := s.Launch(fat.Bind(struct{}{}), device.Grid{Blocks: 8, Warps: 8, Cooperative: true}); err != nil {
		t.Error(err)
	}
	// An error of a launch that ends nothing.
	d.FailCall("cuLaunchKernel", 1, 701)
	says(t, s.Launch(nothingKernel.Bind(struct{}{}), one), "cuLaunchKernel: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)", "kernel Nothing, 1 blocks of 1 warps")
	if err := s.Launch(nothingKernel.Bind(struct{}{}), one); err != nil || within(t, s) != nil {
		t.Errorf("after a launch that was refused: %v", err)
	}
	shut(t, s.Close)
	shut(t, dev.Close)
}

// TestStickyErrors: each error that ends the context names the kernels that had not ended, is returned to all ranks on the GPU,
// and they can all close; then the context is released.
func TestStickyErrors(t *testing.T) {
	for _, code := range []int{214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999} {
		d := newDouble(t)
		a, b := d.open(cuda.Options{Ranks: 2}), d.open(cuda.Options{Ranks: 2})
		s, other := a.NewStream(), b.NewStream()
		m := must[device.Memory](t)(a.Alloc(100))
		g := gate(t, b)
		if err := s.Launch(devicetest.FillKernel.Bind(devicetest.FillArgs{To: m.Ptr(), Bytes: 1}), one); err != nil {
			t.Fatal(err)
		}
		if err := within(t, s); err != nil {
			t.Fatal(err)
		}
		d.Ask("double_stick", code)
		var k *device.KernelError
		var ce *cuda.Error
		if !errors.As(within(t, g.stream), &k) || k.Kernel != "Gate" || k.Block != -1 || !errors.As(k, &ce) || int(ce.Code) != code {
			t.Errorf("error %d: %v, want one of Gate alone: Fill had ended", code, k)
		}
		if code == 702 {
			says(t, k, "kernel Gate failed: cuda: cuStream", "CUDA_ERROR_LAUNCH_TIMEOUT (702): the launch timed out")
		}
		failing := a.NewStream()
		for what, err := range map[string]error{
			"launch": s.Launch(nothingKernel.Bind(struct{}{}), one),
			"wait":   within(t, other),
			"write":  m.Write(0, []byte{1}),
			"read":   m.Read(0, []byte{1}),
			"fill":   other.Fill(m.Ptr(), 0, 1),
			"store":  other.Store(gpu.Cast[uint64](m.Ptr()), 1),
			"stream": failing.Launch(nothingKernel.Bind(struct{}{}), one),
			"open":   second(d.try(cuda.Options{})),
			"alloc":  second(a.Alloc(10)),
			"pin":    second(a.AllocHost(10 << 20)),
		} {
			if !errors.As(err, &k) || k.Kernel != "Gate" {
				t.Errorf("error %d: %s afterwards: %v", code, what, err)
			}
		}
		if a.Busy() || !g.stream.Record().Done() {
			t.Errorf("error %d: something is still to come", code)
		}
		g.release()
		d.Until("running", 0)
		g.close()
		for _, f := range []func() error{s.Close, other.Close, failing.Close, m.Free, a.Close, b.Close} {
			shut(t, f)
		}
		if n := d.Count("cuDevicePrimaryCtxRelease_v2"); n != 1 {
			t.Errorf("error %d: the context was released %d times", code, n)
		}
		_, err := d.try(cuda.Options{}) // as the driver was seen to
		says(t, err, "cuDevicePrimaryCtxRetain", "only another process")
	}
}

func second[T any](_ T, err error) error { return err }

// TestSuspects: where several kernels may have failed, all are named, and the error says that it is not known which.
func TestSuspects(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	g := gate(t, dev)
	s := dev.NewStream()
	s.WaitEvent(g.stream.Record())
	for range 200 { // more than a stream knows the names of
		if err := s.Launch(nothingKernel.Bind(struct{}{}), one); err != nil {
			t.Fatal(err)
		}
	}
	d.Ask("double_stick", 700)
	err := within(t, s)
	says(t, err, "kernel Gate, Nothing failed", "CUDA_ERROR_ILLEGAL_ADDRESS (700)", "does not say which")
	g.release()
	d.Until("running", 0)
	g.close()
	shut(t, s.Close)
	shut(t, dev.Close)
}

// TestHangs: a stream whose kernel does not end is not closed, within the device's timeout, and can be closed later.
func TestHangs(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{Timeout: 30 * time.Millisecond})
	g := gate(t, dev)
	err := g.stream.Close()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closed under its kernel: %v", err)
	}
	says(t, err, "close stream", "0 of 1 items done")
	g.open()
	shut(t, dev.Close)
}

// TestProgress: who waits for a stream moves data meanwhile, and no longer once that was taken away.
func TestProgress(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	g := gate(t, dev)
	calls := 0
	dev.SetProgress(func() bool {
		if calls++; calls == 100 {
			g.release()
		}
		return true
	})
	if err := within(t, g.stream); err != nil || calls < 100 {
		t.Errorf("%d calls while a thread waited, want 100 at least (%v)", calls, err)
	}
	dev.SetProgress(nil)
	before := calls
	g.open()
	if calls != before {
		t.Error("it is called after it was taken away")
	}
	shut(t, dev.Close)
}

// TestProgressCopies: who moves data may copy too, also while a copy is waited for: the status of a queue is a word of the device's.
func TestProgressCopies(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	m, err := dev.Alloc(16)
	if err != nil {
		t.Fatal(err)
	}
	var errs []error
	write := func(off int) bool {
		if err := m.Write(off, make([]byte, 8)); err != nil {
			errs = append(errs, err)
		}
		return false
	}
	dev.SetProgress(func() bool { return write(8) })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 200 {
			write(0)
			errs = append(errs, m.Read(0, make([]byte, 16)))
		}
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("a copy waits for itself")
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	dev.SetProgress(nil)
	shut(t, m.Free)
	shut(t, dev.Close)
}

// TestLaunchAllocs holds that a launch allocates nothing, of either kind.
func TestLaunchAllocs(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	s := dev.NewStream()
	call := &kept{nothingKernel.Bind(struct{}{})}
	mem, host := must[device.Memory](t)(dev.Alloc(64)), must[device.Memory](t)(dev.AllocHost(16))
	resume := d.Pause() // so that nothing else runs that allocates
	for _, g := range []device.Grid{one, {Blocks: 2, Warps: 2, Cooperative: true}} {
		if n := testing.AllocsPerRun(100, func() { // some of them store how far the stream is
			if err := s.Launch(call, g); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%+v: %v allocations a launch", g, n)
		}
	}
	if n := testing.AllocsPerRun(20, func() {
		if err := s.Through(mem.Ptr().Byte(32), mem.Ptr(), 32, host.Ptr(), 8, false); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a copy by way of the host's memory", n)
	}
	resume()
	shut(t, s.Close)
	shut(t, mem.Free)
	shut(t, host.Free)
	shut(t, dev.Close)
}

// kept is a call that is used again and again.
type kept struct{ gpu.Call }

func (k *kept) Release() {}

// TestBusyBesideClose: who asks whether anything runs, as a thread of the proxy does all the time, may do so while streams are
// closed: the driver is never asked about a stream that it no longer has.
func TestBusyBesideClose(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	stop, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		for {
			select {
			case <-stop:
				return
			default:
				dev.Busy()
			}
		}
	}()
	for range 300 {
		s := dev.NewStream()
		if err := s.Launch(nothingKernel.Bind(struct{}{}), one); err != nil || within(t, s) != nil {
			t.Fatalf("a launch on a new stream: %v", err)
		}
		shut(t, s.Close)
	}
	close(stop)
	<-asked
	shut(t, dev.Close)
}
