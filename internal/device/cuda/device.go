// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/doorbell-net/doorbell/internal/device"
)

// Choice is which GPU a rank takes. The zero value is ByLocalRank.
type Choice int

// ByLocalRank takes the GPU of the rank's number on its host, modulo their count.
const ByLocalRank Choice = 0

// Index takes the GPU of that number, as nvidia-smi counts those that this process sees.
func Index(i int) Choice { return Choice(i + 1) }

// Options of a device.
type Options struct {
	GPU       Choice
	LocalRank int // of this rank on its host
	// Ranks is how many ranks of this process share the GPU, each with the same share of its multiprocessors. 0: one. Ranks of
	// other processes are not counted: kernels of two processes take turns on a GPU and never run together.
	Ranks int
	// Rank is of the world: what errors call this one.
	Rank int
	// Starts has streams say which launch the GPU has come to, for what a wait says that came to its deadline. It costs a store
	// of the stream for each launch.
	Starts bool
	// Shared makes memory that other processes can import by its descriptor, where GPU and driver can.
	Shared bool
	// Multimem allows NVLink multicast: see multicast.go for what it can do to GPUs.
	Multimem bool
	// Timeout ends waits for copies, and for what runs at Close. 0: 100 s.
	Timeout time.Duration
	// Patience is how long a call that the driver would have wait for kernels that run waits for their end. 0: 10 s.
	Patience time.Duration
	// Library is the driver's. "": libcuda.so.1.
	Library string
	Log     *slog.Logger // nil: slog.Default
}

func (o *Options) fill() error {
	o.Ranks = cmp.Or(o.Ranks, 1)
	o.Timeout = cmp.Or(o.Timeout, 100*time.Second)
	o.Patience = cmp.Or(o.Patience, 10*time.Second)
	o.Library = cmp.Or(o.Library, "libcuda.so.1")
	if o.Log == nil {
		o.Log = slog.Default()
	}
	switch {
	case o.GPU < 0:
		return fmt.Errorf("GPU %d asked for, 0 or more are accepted", o.GPU-1)
	case o.LocalRank < 0:
		return fmt.Errorf("local rank %d given, 0 or more are accepted", o.LocalRank)
	case o.Ranks < 0:
		return fmt.Errorf("%d ranks share the GPU, 1 or more are accepted", o.Ranks)
	case o.Timeout < 0 || o.Patience < 0:
		return fmt.Errorf("timeout %v, patience %v given, more than nothing is accepted", o.Timeout, o.Patience)
	}
	return nil
}

// Device is a GPU as one rank uses it. Its methods are safe for concurrent use.
type Device struct {
	opt      Options
	card     *card
	copier   *copier
	progress atomic.Pointer[func() bool]
	live     atomic.Int64 // pieces of memory
	streams  atomic.Int64
	closed   atomic.Bool
}

var _ device.Device = (*Device)(nil)

// Open takes a GPU for a rank and loads the program's kernels there. Its error wraps [device.ErrNotAvailable] where there is
// no driver, an old one, or no GPU that does.
func Open(o Options) (*Device, error) {
	d, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("open device cuda: %w", err)
	}
	return d, nil
}

func open(o Options) (*Device, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	drv, err := load(o.Library)
	if err != nil {
		return nil, err
	}
	out := new(outs)
	if r := drv.call(cuDeviceGetCount, out.at(0)); r != success {
		return nil, drv.fault(cuDeviceGetCount, r, "")
	}
	count := int(out.int32(0))
	if count == 0 {
		return nil, fmt.Errorf("the driver sees no GPU (CUDA_VISIBLE_DEVICES hides them, or there is none): %w; doorbell runs without a GPU with --device soft", device.ErrNotAvailable)
	}
	index := int(o.GPU) - 1
	if o.GPU == ByLocalRank {
		index = o.LocalRank % count
	}
	if index >= count {
		return nil, fmt.Errorf("GPU %d asked for, 0 to %d are there: %w", index, count-1, device.ErrNotAvailable)
	}
	c, err := attach(drv, index, count, &o)
	if err != nil {
		return nil, err
	}
	d := &Device{opt: o, card: c}
	if d.copier, err = d.newCopier(); err != nil {
		return nil, errors.Join(err, c.detach())
	}
	if o.Shared {
		if err := d.tryShared(); err != nil {
			o.Log.Warn("memory is not shared with other processes", "gpu", index, "error", err)
			d.opt.Shared = false
		}
	}
	d.loadAll()
	return d, nil
}

func (d *Device) Name() string { return "cuda" }

// Caps says what the GPU and its driver are and can.
func (d *Device) Caps() Caps { return d.card.caps }

// GPU names the GPU among all that there are: ranks of other processes may use the same.
func (d *Device) GPU() string { return d.card.caps.UUID }

// Powers is device.Device's.
func (d *Device) Powers() device.Powers { return device.Powers{Lanes: lanes} }

// Busy says whether anything of this process is under way on the GPU: Free then gives nothing back yet, and code cannot be
// loaded.
func (d *Device) Busy() bool { return d.card.busy() }

// Foreign says that n more groups of kernels, or fewer, run on the GPU which this process launched by other means than a
// Stream: nothing that would wait for them is done meanwhile.
func (d *Device) Foreign(n int) { d.card.foreign.Add(int32(n)) }

func (d *Device) SetProgress(f func() bool) {
	if f == nil {
		d.progress.Store(nil)
		return
	}
	d.progress.Store(&f)
}

// Close ends the device. The last rank on a GPU ends this process's context there.
func (d *Device) Close() error {
	if s, m := d.streams.Load(), d.live.Load(); s > 0 || m > 0 {
		return fmt.Errorf("close device: %d streams and %d pieces of memory are still there", s, m)
	}
	if d.closed.Swap(true) {
		return nil
	}
	if err := d.copier.close(); err != nil {
		d.closed.Store(false)
		return fmt.Errorf("close device: %w", err)
	}
	if err := d.card.detach(); err != nil {
		return fmt.Errorf("close device: %w", err)
	}
	return nil
}
