// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// card is a GPU as this process uses it: one context for all ranks on it, the GPU's primary one. Kernels of two contexts
// take turns and never run together, so ranks that wait for one another must share one; addresses then mean the same to all,
// and memory of one rank is a plain pointer to the others. Being the primary one, it is also that of other libraries.
type card struct {
	drv    *driver
	index  int
	ctx    uintptr
	caps   Caps
	urgent int32 // priority of streams that carry no kernels: it goes first where it can

	// gate: who launches holds it for reading, who calls what waits for kernels for writing, having seen that none runs.
	gate sync.RWMutex
	dead atomic.Pointer[device.KernelError] // the first error that ended the context
	log  *slog.Logger

	foreign atomic.Int32 // groups of kernels that this process launched past our streams

	kernels atomic.Pointer[map[*gpu.Code]*kernel] // replaced, with gate held
	modules map[string]*module                    // by text; gate
	hosts   hostTable                             // under a lock of its own
	local   int                                   // bytes of local memory a thread that the context holds; gate

	mu      sync.Mutex // what follows
	refs    int
	dev     uintptr
	streams map[*stream]struct{}
	marks   uintptr // pinned: a line for each lane
	limbo   []discarded

	laneMu sync.Mutex // what follows; the driver is called with it held
	lanes  []*lane    // all, by their lines
	spare  []*lane    // those that no stream has
}

// discarded is how something is given back when no kernel runs: calls of the driver in their order, and what is of the
// operating system behind them.
type discarded struct {
	calls []call
	then  func() error // nil for nothing
}

type call struct {
	op   function
	args [4]uintptr
}

func byCall(op function, args ...uintptr) (d discarded) {
	d.first(op, args...)
	return d
}

// first puts a call before the others.
func (d *discarded) first(op function, args ...uintptr) {
	k := call{op: op}
	copy(k.args[:], args)
	d.calls = slices.Insert(d.calls, 0, k)
}

type cardKey struct {
	path  string
	index int
}

var cards = struct {
	sync.Mutex
	open map[cardKey]*card
}{open: map[cardKey]*card{}}

// attach opens a GPU, of so many, for one more rank.
func attach(d *driver, index, count int, o *Options) (*card, error) {
	cards.Lock()
	defer cards.Unlock()
	k := cardKey{d.path, index}
	if c := cards.open[k]; c != nil {
		if err := c.failure(); err != nil {
			return nil, fmt.Errorf("GPU %d cannot be used any more by this process: %w", index, err)
		}
		c.hold()
		return c, nil
	}
	c := &card{drv: d, index: index, refs: 1, log: o.Log, streams: map[*stream]struct{}{}, modules: map[string]*module{}}
	c.kernels.Store(&map[*gpu.Code]*kernel{})
	out := new(outs)
	if r := d.call(cuDeviceGet, out.at(0), uintptr(index)); r != success {
		return nil, d.fault(cuDeviceGet, r, "GPU %d of %d", index, count)
	}
	c.dev = uintptr(out.int32(0))
	var err error
	if c.caps, err = d.caps(index, count, c.dev); err != nil {
		return nil, err
	}
	if err := c.caps.check(); err != nil {
		return nil, err
	}
	if r := d.call(cuDevicePrimaryCtxRetain, out.at(0), c.dev); r != success {
		why := ""
		if r.sticky() {
			why = "; a kernel of this process failed before, and only another process gets a context again"
		} else if c.caps.computeMode == computeModeOne {
			why = " is in compute mode Exclusive_Process: one process has it (nvidia-smi -c 0 lifts that)"
		}
		return nil, d.fault(cuDevicePrimaryCtxRetain, r, "GPU %d (%s)%s", index, c.caps.Name, why)
	}
	c.ctx = out.addr(0)
	if err := c.prepare(o, out); err != nil {
		if !errors.Is(err, errStuck) {
			d.call(cuDevicePrimaryCtxRelease, c.dev)
		}
		return nil, err
	}
	cards.open[k] = c
	return c, nil
}

// hold has the card stay for one more rank, or for one more user of its memory, until detach.
func (c *card) hold() {
	c.mu.Lock()
	c.refs++
	c.mu.Unlock()
}

// prepare makes what all ranks on the card share.
func (c *card) prepare(o *Options, out *outs) error {
	if r := c.do(cuCtxGetStreamPriorityRange, out.at(1), out.at(0)); r != success {
		return c.fault(cuCtxGetStreamPriorityRange, r, "")
	}
	c.urgent = out.int32(0)
	if r := c.do(cuMemHostAlloc, out.at(2), maxLanes*lineBytes, hostFlags); r != success {
		return c.fault(cuMemHostAlloc, r, "%s asked for", size(maxLanes*lineBytes))
	}
	c.marks = out.addr(2)
	clear(ffi.Bytes(c.marks, maxLanes*lineBytes))
	return c.layLanes(o.Ranks, o.Timeout)
}

// detach closes the card for one rank, or for one that holds memory of it. The last one ends the context, and with it all that
// was taken there.
func (c *card) detach() error {
	cards.Lock()
	defer cards.Unlock()
	c.mu.Lock()
	c.refs--
	last := c.refs == 0
	c.mu.Unlock()
	if !last {
		return nil
	}
	delete(cards.open, cardKey{c.drv.path, c.index})
	c.gate.Lock()
	defer c.gate.Unlock()
	c.sweep()
	for _, l := range c.lanes {
		c.free(byCall(cuStreamDestroy, l.handle))
	}
	c.free(byCall(cuMemFreeHost, c.marks))
	if c.hosts.at != 0 {
		c.free(byCall(cuMemFreeHost, c.hosts.at))
	}
	for _, m := range c.modules {
		if m.err == nil {
			c.free(byCall(cuModuleUnload, m.handle))
		}
	}
	if r := c.drv.call(cuDevicePrimaryCtxRelease, c.dev); r != success && !r.sticky() {
		return c.fault(cuDevicePrimaryCtxRelease, r, "GPU %d", c.index)
	}
	return nil
}

// do calls a function of the driver in the card's context.
func (c *card) do(f function, args ...uintptr) result { return c.drv.in(c.ctx, f, args...) }

// fault is the error of a call. One that ends the context is kept, and is what all later calls return.
func (c *card) fault(f function, r result, format string, args ...any) error {
	e := c.drv.fault(f, r, format, args...)
	if r.sticky() {
		c.die(e)
		return c.failure()
	}
	return e
}

// failure is the error that ended the context, nil while it lives.
func (c *card) failure() error {
	if e := c.dead.Load(); e != nil {
		return e
	}
	return nil
}

// die keeps the first error that ended the context. The driver does not say which kernel it was: those are named of which
// it is not known that they had ended.
func (c *card) die(e *Error) {
	var names []string
	for _, s := range c.all() {
		names = s.pending(names)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	k := &device.KernelError{Kernel: strings.Join(names, ", "), Block: -1, Warp: -1, Value: e}
	switch len(names) {
	case 0:
		k.Kernel = "(none of this process)"
	case 1:
	default:
		e.Detail = strings.TrimPrefix(e.Detail+"; one of these kernels failed, the driver does not say which", "; ")
	}
	if c.dead.CompareAndSwap(nil, k) {
		c.log.Error("GPU context ended", "gpu", c.index, "kernel", k.Kernel, "error", e)
	}
}

// all lists the streams. mu is not held when one of theirs is taken.
func (c *card) all() []*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.streams))
}

// running lists the streams on which something is under way.
func (c *card) running() (busy []*stream) {
	for _, s := range c.all() {
		if !s.idle() {
			busy = append(busy, s)
		}
	}
	return busy
}

// busy says whether anything of this process is under way on the card, by our streams or past them.
func (c *card) busy() bool { return c.foreign.Load() > 0 || len(c.running()) > 0 }

// quiet waits until no kernel of this process runs on the card, and returns with the gate held for writing. Nobody is kept
// from launching meanwhile: what runs may wait for what is launched next. It gives up after patience.
func (c *card) quiet(what string, patience time.Duration, w *waiter) error {
	for w.begin(); ; w.round() {
		c.gate.Lock()
		if err := c.failure(); err != nil {
			c.gate.Unlock()
			return fmt.Errorf("%s: %w", what, err)
		}
		if !c.busy() {
			return nil
		}
		c.gate.Unlock()
		if w.waited() > patience {
			var names []string
			for _, s := range c.running() {
				names = s.pending(names)
			}
			if n := c.foreign.Load(); n > 0 {
				names = append(names, fmt.Sprintf("%d that the program launched itself", n))
			}
			return fmt.Errorf("%s: waited %v for kernels of this process that run (%s): the driver's call would wait for them, and they may wait for this rank: %w",
				what, patience, strings.Join(names, ", "), device.ErrBusy)
		}
	}
}

// discard gives memory or code back: now if nothing runs, else when nothing does.
func (c *card) discard(d discarded) error {
	if c.dead.Load() != nil {
		return c.free(d)
	}
	if c.gate.TryLock() {
		defer c.gate.Unlock()
		if !c.busy() {
			c.sweep()
			return c.free(d)
		}
	}
	c.mu.Lock()
	c.limbo = append(c.limbo, d)
	c.mu.Unlock()
	return nil
}

// sweep gives back what waited for that. gate is held for writing, and nothing runs.
func (c *card) sweep() {
	c.mu.Lock()
	all := c.limbo
	c.limbo = nil
	c.mu.Unlock()
	for _, d := range all {
		if err := c.free(d); err != nil {
			c.log.Warn("give back", "gpu", c.index, "error", err)
		}
	}
}

func (c *card) free(d discarded) error {
	var errs []error
	for _, k := range d.calls {
		if c.dead.Load() != nil {
			break // all of it went with its context
		}
		if r := c.do(k.op, k.args[:]...); r != success {
			if err := c.fault(k.op, r, "at %#x", k.args[0]); !errors.As(err, new(*device.KernelError)) {
				errs = append(errs, err)
			}
		}
	}
	if d.then != nil {
		errs = append(errs, d.then())
	}
	return errors.Join(errs...)
}
