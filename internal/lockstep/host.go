// SPDX-License-Identifier: Apache-2.0

package lockstep

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// span is memory of the host.
type span struct{ from, to uint64 }

// host is all of it, copied when it changes: a lock would order the lanes that look.
var host struct {
	mu    sync.Mutex
	spans atomic.Pointer[[]span]
}

// HostMemory notes memory of the host, on which a GPU's threads do no atomics: over PCIe they are none against the host's.
// forget is called before it is freed.
func HostMemory(addr, bytes uint64) (forget func()) {
	s := span{addr, addr + bytes}
	change(func(all []span) []span { return append(all, s) })
	return func() {
		change(func(all []span) []span {
			i := slices.Index(all, s)
			return slices.Delete(all, i, i+1)
		})
	}
}

func change(f func([]span) []span) {
	host.mu.Lock()
	defer host.mu.Unlock()
	var all []span
	if old := host.spans.Load(); old != nil {
		all = slices.Clone(*old)
	}
	all = f(all)
	host.spans.Store(&all)
}

// HostAtomic is the error of a kernel's atomic on memory of the host, nil for one of a device's, and for what the host does
// itself: on a thread of its own, or on one of the device's that waits.
func HostAtomic(addr uint64) error {
	all := host.spans.Load()
	if all == nil || !slices.ContainsFunc(*all, func(s span) bool { return s.from <= addr && addr < s.to }) || !inKernel() {
		return nil
	}
	return fmt.Errorf("atomic of the device on address %#x, which is memory of the host: a load or a store is accepted, at %v", addr, here())
}

// inKernel says whether a kernel was called, and no hook of the host's by it since.
func inKernel() bool {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	called := false // something that is no machinery, from which the operation was called
	for {
		f, more := frames.Next()
		inside := strings.HasPrefix(f.Function, machinery[0]) || strings.HasPrefix(f.Function, machinery[1])
		if called && inside {
			return !strings.HasSuffix(f.Function, "Thread.Idle")
		}
		called = called || !inside
		if !more {
			return false
		}
	}
}
