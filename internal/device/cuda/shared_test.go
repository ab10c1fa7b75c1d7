// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"

	"golang.org/x/sys/unix"
)

// TestSharedConformance: memory that other processes can map is memory like any.
func TestSharedConformance(t *testing.T) {
	devicetest.Run(t, func(t testing.TB) device.Device { return newDouble(t).open(cuda.Options{Shared: true}) })
}

// otherEnv names the driver's library to a process that TestOtherProcess starts: it is the other process.
const otherEnv = "TEST_OTHER_PROCESS"

// TestOtherProcess: kernels of two processes, each with a driver of its own, write each other's memory and wait for each other,
// and host and kernels of one see what the other stores in the host's.
func TestOtherProcess(t *testing.T) {
	if os.Getenv(otherEnv) != "" {
		beOther(t, newDouble(t).open(cuda.Options{Shared: true}))
		return
	}
	meetOther(t, newDouble(t).open(cuda.Options{Shared: true}), "TestOtherProcess")
}

const shareBytes = 3<<20 + 5

// startOther starts a process that runs a test of this binary, and gives it memory, as descriptors from 3 on.
func startOther(ctx context.Context, t *testing.T, test string, out *bytes.Buffer, memory ...device.Memory) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), otherEnv+"=1")
	for i, s := range memory {
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(dup(t, s.Handle().FD)), fmt.Sprint("memory", i)))
	}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	return cmd
}

// TestOtherProcessDies: a process that is killed while kernels of both run, on memory of ours, takes nothing with it: ours goes
// on, the memory is there, and what comes after runs.
func TestOtherProcessDies(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{Shared: true})
	if os.Getenv(otherEnv) != "" {
		hold(t, dev, must[device.Memory](t)(dev.Import(device.Handle{FD: 3, Bytes: shareBytes})), 1)
		d.Until("running", 1)
		t.Fatal(unix.Kill(os.Getpid(), unix.SIGKILL))
	}
	m := must[device.Memory](t)(dev.Alloc(shareBytes))
	s, late := hold(t, dev, m, 0)
	ctx, cancel := context.WithTimeout(t.Context(), devicetest.Bound)
	defer cancel()
	var out bytes.Buffer
	cmd := startOther(ctx, t, "TestOtherProcessDies", &out, m)
	if err := cmd.Wait(); err == nil || ctx.Err() != nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Fatalf("the other process: %v\n%s", err, out.String())
	}
	if !dev.Busy() {
		t.Error("our kernel ended with the other process")
	}
	var b [4]byte
	if err := errors.Join(m.Write(0, []byte{1, 0, 0, 0}), within(t, s), late.Read(0, b[:])); err != nil || b != [4]byte{} {
		t.Errorf("our kernel ended with %v, late %x", err, b)
	}
	if err := s.Launch(nothingKernel.Bind(struct{}{}), one); err != nil || within(t, s) != nil {
		t.Errorf("a kernel afterwards: %v", err)
	}
	for _, f := range []func() error{s.Close, m.Free, late.Free, dev.Close} {
		shut(t, f)
	}
}

// hold launches a kernel that waits for a word of shared memory.
func hold(t *testing.T, dev *cuda.Device, m device.Memory, word int) (device.Stream, device.Memory) {
	s, late := dev.NewStream(), must[device.Memory](t)(dev.Alloc(4))
	a := devicetest.GateArgs{Open: word32(m).At(word), Late: word32(late), Patience: uint64(devicetest.Bound)}
	if err := s.Launch(devicetest.GateKernel.Bind(a), one); err != nil {
		t.Fatal(err)
	}
	return s, late
}

// meetOther shares memory with a process that runs a test of this binary.
func meetOther(t *testing.T, dev *cuda.Device, test string) {
	m, host := must[device.Memory](t)(dev.Alloc(shareBytes)), must[device.Memory](t)(dev.AllocHost(shareBytes))
	late := must[device.Memory](t)(dev.Alloc(4))
	ctx, cancel := context.WithTimeout(t.Context(), 2*devicetest.Bound)
	defer cancel()
	var out bytes.Buffer
	cmd := startOther(ctx, t, test, &out, m, host)
	s := dev.NewStream()
	a := devicetest.PairArgs{Mine: word32(m), Theirs: word32(m).At(1), Late: word32(late), Patience: uint64(devicetest.Bound)}
	if err := s.Launch(devicetest.PairKernel.Bind(a), one); err != nil {
		t.Fatal(err)
	}
	if err := within(t, s); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "--- PASS") {
		t.Errorf("the other process: %v\n%s", err, out.String())
	}
	for what, s := range map[string]device.Memory{"device": m, "host": host} {
		got := make([]byte, shareBytes-8)
		if err := s.Read(8, got); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{7}, len(got))) {
			t.Errorf("%s memory does not show what another process's kernel wrote: %x... (%v)", what, got[:8], err)
		}
	}
	var b [4]byte
	if err := late.Read(0, b[:]); err != nil || binary.LittleEndian.Uint32(b[:]) != 0 {
		t.Errorf("the kernel did not see the other process's (%v)", err)
	}
	for _, f := range []func() error{s.Close, m.Free, host.Free, late.Free, dev.Close} {
		shut(t, f)
	}
}

// beOther is the other process: what it got are descriptors 3 and 4.
func beOther(t *testing.T, dev *cuda.Device) {
	m := must[device.Memory](t)(dev.Import(device.Handle{FD: 3, Bytes: shareBytes}))
	host := must[device.Memory](t)(dev.Import(device.Handle{FD: 4, Bytes: shareBytes}))
	if m.Bytes() != nil || len(host.Bytes()) != shareBytes || m.Handle().FD != -1 {
		t.Errorf("host's views of %d and %d bytes", len(m.Bytes()), len(host.Bytes()))
	}
	late := must[device.Memory](t)(dev.Alloc(4))
	s := dev.NewStream()
	for _, to := range []device.Memory{m, host} {
		a := devicetest.FillArgs{To: to.Ptr().Byte(8), Bytes: shareBytes - 8, Value: 7}
		if err := s.Launch(devicetest.FillKernel.Bind(a), device.Grid{Blocks: 4, Warps: 4}); err != nil {
			t.Fatal(err)
		}
	}
	a := devicetest.PairArgs{Mine: word32(m).At(1), Theirs: word32(m), Late: word32(late), Patience: uint64(devicetest.Bound)}
	if err := s.Launch(devicetest.PairKernel.Bind(a), one); err != nil {
		t.Fatal(err)
	}
	if err := within(t, s); err != nil {
		t.Error(err)
	}
	var b [4]byte
	if err := late.Read(0, b[:]); err != nil || binary.LittleEndian.Uint32(b[:]) != 0 {
		t.Errorf("the kernel did not see the other process's (%v)", err)
	}
	for _, f := range []func() error{s.Close, m.Free, host.Free, late.Free, dev.Close} {
		shut(t, f)
	}
}

// TestSharedBetweenGPUs: memory that processes can share is mapped for another GPU of this process too, beside kernels there.
func TestSharedBetweenGPUs(t *testing.T) {
	d := newDouble(t)
	d.Set("devices", 2)
	a, b := d.open(cuda.Options{Shared: true}), d.open(cuda.Options{Shared: true, LocalRank: 1})
	m, host := must[device.Memory](t)(a.Alloc(100)), must[device.Memory](t)(a.AllocHost(100))
	g := gate(t, b)
	for _, s := range []device.Memory{m, host} {
		p := must[device.Memory](t)(b.Import(s.Handle()))
		got := make([]byte, 5)
		if err := errors.Join(s.Write(10, []byte("hello")), p.Read(10, got)); err != nil || string(got) != "hello" {
			t.Errorf("read %q (%v)", got, err)
		}
		shut(t, p.Free)
	}
	g.open()
	d.FailCall("cuMemSetAccess", 1, 217) // what the driver says of GPUs that do not reach each other
	_, err := b.Import(m.Handle())
	says(t, err, "import memory", "cuMemSetAccess", "(217)", "GPU 1")
	shut(t, m.Free)
	shut(t, host.Free)
	shut(t, a.Close)
	shut(t, b.Close)
}

// TestImportRefuses: what is no memory, or less than is asked for, is refused, and nothing of it stays.
func TestImportRefuses(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{Shared: true})
	m, host := must[device.Memory](t)(dev.Alloc(100)), must[device.Memory](t)(dev.AllocHost(100))
	before := d.Count("memories")
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for words, h := range map[string]device.Handle{
		"at least 1 is accepted":         {FD: m.Handle().FD},
		"cuMemMap":                       {FD: m.Handle().FD, Bytes: 5 << 20},
		"has 100":                        {FD: host.Handle().FD, Bytes: 4097},
		"cuMemImportFromShareableHandle": {FD: int(null.Fd()), Bytes: 100},
		"has no descriptor":              {FD: -1, Bytes: 100},
	} {
		_, err := dev.Import(h)
		says(t, err, "import memory", words)
	}
	if n := d.Count("memories"); n != before {
		t.Errorf("%d pieces of memory after imports that were refused, %d before", n, before)
	}
	shut(t, m.Free)
	shut(t, host.Free)
	shut(t, dev.Close)
}

// TestNotShared: where memory cannot be shared, the device says so once and goes on with memory of its own.
func TestNotShared(t *testing.T) {
	for _, f := range []string{"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemAddressReserve",
		"cuMemMap", "cuMemSetAccess", "cuMemHostRegister_v2"} {
		t.Run(f, func(t *testing.T) {
			d := newDouble(t)
			d.FailCall(f, 1, 801)
			dev := d.open(cuda.Options{Shared: true})
			m := must[device.Memory](t)(dev.Alloc(100))
			if h := m.Handle(); h.FD >= 0 {
				t.Error("memory has a descriptor")
			}
			shut(t, m.Free)
			shut(t, dev.Close)
		})
	}
}

// TestSharedBesideKernel: memory of other processes is mapped beside a kernel, and given back when it has ended.
func TestSharedBesideKernel(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{Shared: true, Patience: 30 * time.Millisecond})
	m, host := must[device.Memory](t)(dev.Alloc(100)), must[device.Memory](t)(dev.AllocHost(100))
	g := gate(t, dev)
	before := d.Count("memories")
	var maps []device.Memory
	for _, s := range []device.Memory{m, host} {
		maps = append(maps, must[device.Memory](t)(dev.Import(device.Handle{FD: s.Handle().FD, Bytes: 100})))
	}
	for _, s := range append(maps, m, host) {
		shut(t, s.Free)
	}
	if n := d.Count("memories"); n != before+2 {
		t.Errorf("%d pieces of memory beside a kernel, want the %d that it may use", n, before+2)
	}
	g.open()
	shut(t, dev.Close)
}

func dup(t testing.TB, fd int) int {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
