// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cudatest_test

import (
	"errors"
	"runtime/debug"
	"testing"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/cuda/cudatest"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
)

var read byte

// touch does something on the host, and says at which address it faulted, 0 if it did not.
func touch(f func()) (at uintptr) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault, ok := recover().(interface{ Addr() uintptr }); ok {
			at = fault.Addr()
		}
	}()
	f()
	return 0
}

// TestHostTouchFaults: device memory faults where the host touches it, before and after a kernel writes it and between copies
// that go through; that of the host does not.
func TestHostTouchFaults(t *testing.T) {
	for _, shared := range []bool{false, true} {
		dev, err := cuda.Open(cuda.Options{Library: cudatest.New(t, cudatest.Of(devicetest.FillKernel)).Path, Shared: shared})
		if err != nil {
			t.Fatal(err)
		}
		m, err := dev.Alloc(100)
		host, err2 := dev.AllocHost(100)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		s := dev.NewStream()
		look := func(when string) {
			t.Helper()
			for what, f := range map[string]func(){"read": func() { read = m.Ptr().Byte(8).Load() }, "write": func() { m.Ptr().Byte(8).Store(1) }} {
				if at := touch(f); uint64(at) != m.Ptr().Addr()+8 {
					t.Errorf("shared %v, %s: a %s faulted at %#x, want it at %#x", shared, when, what, at, m.Ptr().Addr()+8)
				}
			}
			if at := touch(func() { host.Ptr().Store(1) }); at != 0 {
				t.Errorf("shared %v, %s: memory of the host faulted at %#x", shared, when, at)
			}
		}
		look("when it is new")
		fill := devicetest.FillKernel.Bind(devicetest.FillArgs{To: m.Ptr(), Bytes: 100, Value: 7})
		if err := errors.Join(s.Launch(fill, device.Grid{Blocks: 1, Warps: 1}), s.Wait(t.Context())); err != nil {
			t.Fatal(err)
		}
		look("after a kernel")
		b := make([]byte, 3)
		if err := errors.Join(m.Write(1, []byte{5}), m.Read(0, b)); err != nil || string(b) != "\x07\x05\x07" {
			t.Errorf("read %x (%v)", b, err)
		}
		look("after copies")
		for _, f := range []func() error{s.Close, m.Free, host.Free, dev.Close} {
			if err := f(); err != nil {
				t.Error(err)
			}
		}
	}
}
