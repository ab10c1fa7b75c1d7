// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

// failing are the launches of which a warp fails.
var failing = []struct {
	grid        device.Grid
	block, warp int32
}{
	{one, 0, 0}, {device.Grid{Blocks: 1, Warps: 4}, 0, 2}, {device.Grid{Blocks: 5, Warps: 3}, 3, 0},
	{device.Grid{Blocks: 50, Warps: 2}, 0, 1}, {device.Grid{Blocks: 4, Warps: 8, Cooperative: true}, 3, 7},
}

// RunFailures holds the device that open gives against what a kernel that fails does, as subtests. Run does it too, for
// devices of which it ends a stream alone; where it ends more, each subtest needs a device, or a process, of its own.
func RunFailures(t *testing.T, open func(t testing.TB) device.Device) {
	for i, c := range failing {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			b := &bed{TB: t, dev: open(t)}
			t.Cleanup(func() { b.giveBack(); b.close() })
			b.fail(c.grid, c.block, c.warp)
		})
	}
}

func (b *bed) fail(g device.Grid, block, warp int32) {
	s, passed, cell, wrong := b.stream(), b.words(1), b.words(1), b.words(1)
	other := b.stream()
	b.must(s.Launch(FailKernel.Bind(FailArgs{block, warp, passed.Ptr}), g))
	var failed *device.KernelError
	if err := b.wait(s); !errors.As(err, &failed) || failed.Kernel != "Fail" {
		b.Fatalf("a kernel that fails ended with %v, want a KernelError that names it", err)
	}
	if err := s.Launch(StepKernel.Bind(StepArgs{cell.Ptr, wrong.Ptr, 0}), one); !errors.As(err, &failed) {
		b.Errorf("a stream that failed took a launch: %v", err)
	}
	if err := b.wait(s); !errors.As(err, &failed) {
		b.Errorf("a stream that failed forgot it: %v", err)
	}
	if e := s.Record(); !e.Done() {
		b.Error("something is still to come of a stream that failed")
	}
	if !b.dev.Powers().Confined {
		b.ended(other)
		return
	}
	if passed.get(0) != 0 {
		b.Errorf("%d warps passed a barrier that one of their block never reached", passed.get(0))
	}
	if cell.get(0) != 0 {
		b.Error("a launch ran after the failure of its stream")
	}
	b.run(other, StepKernel.Bind(StepArgs{cell.Ptr, wrong.Ptr, 0}), one) // another stream is none the worse
	b.run(other, RoundsKernel.Bind(RoundArgs{wrong.Ptr, 5}), device.Grid{Blocks: 5, Warps: 8})
	if wrong.get(0) != 0 {
		b.Error("a later launch was harmed by the failed one")
	}
}

// ended holds a device whose kernel failed, where that ends it: every way to go on returns the failure.
func (b *bed) ended(other device.Stream) {
	var failed *device.KernelError
	for what, err := range map[string]error{
		"launch": other.Launch(StepKernel.Bind(StepArgs{}), one),
		"wait":   b.wait(other),
		"copy":   other.Copy(gpu.Ptr[byte]{}, gpu.Ptr[byte]{}, 1),
		"record": other.Record().Wait(b.Context()),
		"new":    b.stream().Launch(StepKernel.Bind(StepArgs{}), one),
		"read":   b.memory[0].Read(0, make([]byte, 1)),
	} {
		if !errors.As(err, &failed) {
			b.Errorf("%s after a failure that ended the device: %v, want the KernelError", what, err)
		}
	}
	if m, err := b.dev.Alloc(1); !errors.As(err, &failed) {
		b.memory = append(b.memory, m)
		b.Errorf("memory after a failure that ended the device: %v, want the KernelError", err)
	}
}

func checkClose(b *bed) {
	m := b.alloc(1)
	if b.dev.Close() == nil {
		b.Error("the device closed under its memory")
	}
	s := b.stream()
	b.must(m.Free())
	if b.dev.Close() == nil {
		b.Error("the device closed under a stream")
	}
	cell, wrong := b.words(1), b.words(1)
	b.run(s, StepKernel.Bind(StepArgs{cell.Ptr, wrong.Ptr, 0}), one) // a refused close closed nothing
	if cell.get(0) != 1 {
		b.Error("the device does not work after a refused close")
	}
	b.must(s.Close())
	for _, m := range b.memory {
		b.must(m.Free())
	}
	b.close()
}
