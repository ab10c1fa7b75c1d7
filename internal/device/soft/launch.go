// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

// launch is one grid on its way. It is part of its stream and used again.
type launch struct {
	dev   *Device
	call  gpu.Call
	grid  device.Grid
	order order
	next  atomic.Int64 // blocks handed out
	left  atomic.Int64 // blocks that have not ended
	done  chan struct{}

	mu  sync.Mutex
	err *device.KernelError
}

// block is a resident block. Blocks and workers are kept for later launches, so that a launch allocates nothing.
type block struct {
	gpu.SoftBlock
	left   atomic.Int32 // threads that have not ended
	l      *launch
	id     int32
	starts uint64 // of lockstep warps: what their order is drawn from
}

// task is one thread of a resident block.
type task struct {
	b      *block
	thread int32
}

type worker struct{ tasks chan task }

// order is the order of blocks: i -> (first + i*step) mod n, each once since step and n have no common factor.
type order struct{ first, step, n uint64 }

func newOrder(n, seed uint64) order {
	if seed == 0 || n < 2 {
		return order{0, 1, n}
	}
	step := seed%n | 1
	for gcd(step, n) != 1 {
		step++
	}
	return order{seed >> 32 % n, step, n}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (o order) at(i int64) int32 { return int32((o.first + uint64(i)%o.n*o.step) % o.n) }

// run runs a grid to its end.
func (l *launch) run() error {
	d := l.dev
	seed := uint64(0)
	if d.opt.Seed != 0 {
		seed = mix(mix(d.opt.Seed) + d.launches.Add(1))
	}
	l.order = newOrder(uint64(l.grid.Blocks), seed)
	l.next.Store(0)
	l.left.Store(int64(l.grid.Blocks))
	l.err = nil
	resident := l.grid.Blocks
	if !l.grid.Cooperative {
		resident = min(resident, d.opt.Resident)
	}
	if l.grid.Blocks == 1 && l.grid.Warps*gpu.WarpSize == 1 {
		// Nothing to hand out: spare the switch to another goroutine.
		b := d.takeBlock()
		b.prepare(l, 0)
		d.runThread(task{b, 0})
		d.giveBlock(b)
		l.left.Store(0)
	} else {
		for range resident {
			l.startBlock(d.takeBlock())
		}
		<-l.done
	}
	return l.end()
}

// end gives the call back and says how the grid ended.
func (l *launch) end() error {
	l.call.Release()
	l.call = nil
	if l.err != nil {
		return l.err
	}
	return nil
}

// startBlock gives a block's place to the next block of the grid.
func (l *launch) startBlock(b *block) {
	i := l.next.Add(1) - 1
	if i >= int64(l.grid.Blocks) {
		l.dev.giveBlock(b)
		return
	}
	b.prepare(l, l.order.at(i))
	threads := uint64(l.grid.Warps * gpu.WarpSize)
	o := order{0, 1, threads}
	if gpu.WarpSize > 1 { // no order among lanes is promised
		b.starts++
		o = newOrder(threads, mix(b.starts))
	}
	for i := range int64(threads) {
		l.dev.takeWorker().tasks <- task{b, o.at(i)}
	}
}

func (b *block) prepare(l *launch, id int32) {
	b.Env, b.l, b.id = l.dev, l, id
	b.left.Store(int32(l.grid.Warps * gpu.WarpSize))
	b.Reset(id, int32(l.grid.Blocks), int32(l.grid.Warps))
}

// endThread is called by each thread when it has left the kernel.
func (b *block) endThread() {
	if b.left.Add(-1) != 0 {
		return
	}
	l := b.l
	l.mu.Lock()
	failed := l.err != nil
	l.mu.Unlock()
	n := int64(1)
	if failed {
		// The rest does not start.
		if next := l.next.Swap(int64(l.grid.Blocks)); next < int64(l.grid.Blocks) {
			n += int64(l.grid.Blocks) - next
		}
	}
	// Start the next one before this one counts as ended: done comes when no block is left.
	l.startBlock(b)
	if l.left.Add(-n) == 0 {
		l.done <- struct{}{}
	}
}

func (l *launch) fail(b *block, thread int32, value any) {
	if value == any(gpu.Ended) {
		return
	}
	l.mu.Lock()
	if l.err == nil {
		l.err = &device.KernelError{Kernel: l.call.Name(), Block: b.id, Warp: thread / gpu.WarpSize, Value: value, Stack: string(debug.Stack())}
	}
	l.mu.Unlock()
	b.End()
}

func (d *Device) runThread(t task) {
	returned := false
	d.warps.Add(1)
	defer func() {
		d.warps.Add(-1)
		if v := recover(); v != nil {
			t.b.l.fail(t.b, t.thread, v)
		} else if !returned {
			t.b.l.fail(t.b, t.thread, fmt.Errorf("the thread left by runtime.Goexit"))
		}
		t.b.Leave(t.thread)
	}()
	t.b.l.call.Run(t.b.Thread(t.thread))
	returned = true
}

func (d *Device) takeWorker() *worker {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.idle); n > 0 {
		w := d.idle[n-1]
		d.idle = d.idle[:n-1]
		return w
	}
	w := &worker{tasks: make(chan task, 1)}
	go d.work(w)
	return w
}

func (d *Device) work(w *worker) {
	var t task
	running := false
	defer func() {
		if running {
			t.b.endThread() // the kernel took this goroutine with it, by runtime.Goexit
		}
	}()
	for t = range w.tasks {
		running = true
		d.runThread(t)
		running = false
		d.mu.Lock()
		d.idle = append(d.idle, w)
		d.mu.Unlock()
		t.b.endThread()
	}
}

func (d *Device) takeBlock() *block {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.blocks); n > 0 {
		b := d.blocks[n-1]
		d.blocks = d.blocks[:n-1]
		return b
	}
	return new(block)
}

func (d *Device) giveBlock(b *block) {
	d.mu.Lock()
	d.blocks = append(d.blocks, b)
	d.mu.Unlock()
}

// mix spreads the bits of a counter (the finaliser of splitmix64: Steele, Lea, Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
