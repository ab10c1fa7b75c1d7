// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys"
)

// Options of a software device.
type Options struct {
	Allocator Allocator
	// Far keeps what Alloc takes from the host, as a GPU's memory is kept: Bytes is nil there.
	Far bool
	// Resident is how many blocks of a grid that is not cooperative run at a time. 0: one per processor and one more.
	Resident int
	// Seed, if not 0, runs the blocks of such a grid in an order drawn from it; 0 in ascending order.
	Seed uint64
	// CrowdedProcess says that more ranks of this process wait than there are processors: a thread that waits gives way to
	// them before it polls. CrowdedMachine says so of processes: then it offers its core from the first round on, and
	// not only from round 16.
	CrowdedProcess, CrowdedMachine bool
	// OwnProcess says that no other rank is of this process.
	OwnProcess bool
	// MaxWarps is the largest cooperative grid. 0: 8,192.
	MaxWarps int
}

// Device is a software device.
type Device struct {
	opt      Options
	progress atomic.Pointer[func() bool]
	warps    atomic.Int32 // running
	live     atomic.Int64 // pieces of memory
	launches atomic.Uint64

	mu      sync.Mutex
	idle    []*worker
	blocks  []*block
	streams int
}

// New makes a software device.
func New(o Options) *Device {
	if o.Resident <= 0 {
		o.Resident = runtime.GOMAXPROCS(0) + 1
	}
	if o.MaxWarps <= 0 {
		o.MaxWarps = 8192
	}
	return &Device{opt: o}
}

func (d *Device) Name() string             { return "soft" }
func (d *Device) MaxCooperativeWarps() int { return d.opt.MaxWarps }

// Powers is device.Device's.
func (d *Device) Powers() device.Powers {
	return device.Powers{Lanes: gpu.WarpSize, HostView: !d.opt.Far, Confined: true, Multimem: true}
}

// CooperativeBlocks is device.Device's. Goroutines need no registers: each kernel gets the same.
func (d *Device) CooperativeBlocks(_ *gpu.Code, warps int) (int, error) {
	if warps < 1 || warps > device.MaxWarpsPerBlock {
		return 0, fmt.Errorf("cooperative blocks: %d warps per block asked for, 1 to %d are accepted", warps, device.MaxWarpsPerBlock)
	}
	return d.opt.MaxWarps / warps, nil
}

func (d *Device) SetProgress(f func() bool) {
	if f == nil {
		d.progress.Store(nil)
		return
	}
	d.progress.Store(&f)
}

func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.streams > 0 || d.live.Load() > 0 {
		return fmt.Errorf("close device: %d streams and %d pieces of memory are still there", d.streams, d.live.Load())
	}
	for _, w := range d.idle {
		close(w.tasks)
	}
	d.idle, d.blocks = nil, nil
	return nil
}

// Clock is gpu.Env's.
func (d *Device) Clock() uint64 { return sys.Nanotime() }

// sleepWord is what idle device threads sleep on. Nobody wakes them: they sleep for a millisecond at most.
var sleepWord uint32

// giveEvery is after how many rounds a lone warp gives way to other goroutines.
const giveEvery = 32

// Idle is gpu.Env's: see gpu.Thread.Idle.
func (d *Device) Idle(round int32, waited uint64) bool {
	if f := d.progress.Load(); f != nil && (*f)() {
		return true
	}
	if waited == 0 && !d.opt.CrowdedProcess {
		return false // the wait has just begun: look again before giving way
	}
	// With one warp there is seldom another goroutine to run, and each call of Gosched wakes a thread that looks for one.
	if !d.opt.OwnProcess || d.warps.Load() > 1 || round%giveEvery == giveEvery-1 {
		runtime.Gosched()
	}
	if waited == 0 || round < 16 && !d.opt.CrowdedMachine {
		return false
	}
	if waited < uint64(time.Millisecond) {
		sys.Yield()
		return false
	}
	sys.FutexWait(&sleepWord, 0, time.Duration(min(waited/8, uint64(time.Millisecond))))
	return false
}

// Wake is gpu.Env's.
func (d *Device) Wake(word *uint32) {
	if atomic.SwapUint32(word, 0) != 0 {
		sys.FutexWake(word, 1)
	}
}

var (
	_ gpu.Env       = (*Device)(nil)
	_ device.Device = (*Device)(nil)
)
