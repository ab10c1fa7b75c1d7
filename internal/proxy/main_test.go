// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"flag"
	"fmt"
	"math/bits"
	"os"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/testenv"
	"github.com/doorbell-net/doorbell/netplugin"
)

// testBound ends what a correct run never waits for.
const testBound = 10 * time.Second

func TestMain(m *testing.M) {
	flag.Parse()
	testenv.Rapid(100, 5000)
	os.Exit(m.Run())
}

// shape is what a test rig has.
type shape struct {
	contexts, peers, depth     int
	signals, counters, windows int
	cells                      bool
	maxBytes, bytes            int // largest operation of the network; bytes of a window
}

// rig is an owner with one device communicator, whose kernels the test plays.
type rig struct {
	shape
	owner  *Owner
	dc     *DevComm
	net    netplugin.Endpoint
	mem    [][]byte // of this rank's windows
	failed []error
}

// words takes n words of zeroed memory for the device.
func words(n int) gpu.Ptr[uint64] {
	w := make([]uint64, max(n, 1))
	return gpu.PtrTo(&w[0])
}

// newRig makes one that drives net. import says what the network knows of peer p's window w.
func newRig(t testing.TB, s shape, net netplugin.Endpoint, region func(window, peer int) netplugin.Region, signals []netplugin.Region) *rig {
	t.Helper()
	r := &rig{shape: s, net: net}
	queues := s.contexts * s.peers
	prod, index := make([]abi.Producer, queues), make([]abi.Index, queues)
	halves := func(n int) gpu.Ptr[uint32] { return gpu.Cast[uint32](words(n)) }
	depth := uint64(s.depth)
	a := abi.DevComm{
		Version: abi.DevCommVersion, Ranks: int32(s.peers), LSASize: 1, Contexts: int32(s.contexts), Signals: int32(s.signals), Counters: int32(s.counters),
		Peers: int32(s.peers), SignalStride: uint32(s.signals), Mask: depth - 1, Shift: uint64(bits.TrailingZeros64(depth)),
		Slots: words(queues * s.depth * abi.DescWords), Hints: halves(queues), Prod: gpu.PtrTo(&prod[0]), Index: gpu.PtrTo(&index[0]),
		Status: halves(queues), Lost: halves(s.peers), Control: gpu.PtrTo(new(abi.Control)), Notes: gpu.PtrTo(new(abi.Notes)),
		Counter: words(s.contexts * s.counters), CounterOffset: words(s.contexts * s.counters),
	}
	if s.cells {
		a.Cells = words(queues * s.depth * abi.CellWords)
	}
	first := FirstTicket(depth)
	for i := range prod {
		prod[i] = abi.Producer{Ticket: first, Credit: first + depth}
		index[i] = abi.Index{Consumed: first, Completed: first}
		a.Hints.At(i).Store(uint32(first))
	}
	r.owner = NewOwner(0, func(err error) { r.failed = append(r.failed, err) })
	stick := func(i int, s abi.Status) { gpu.Store(a.Status.At(i), uint32(s), gpu.Release, gpu.ScopeSys) }
	r.dc = &DevComm{ABI: a, Stick: stick, Context: 7, Signals: signals, Net: net, MaxBytes: s.maxBytes}
	ctx := context.Background()
	for w := range s.windows {
		mem := make([]byte, s.bytes)
		for i := range mem {
			mem[i] = byte(i*7 + w*31 + 1)
		}
		r.mem = append(r.mem, mem)
		peers := make([]netplugin.Region, s.peers)
		for p := range peers {
			peers[p] = region(w, p)
		}
		if err := r.owner.AddWindow(ctx, &Window{ID: uint32(w), Gen: uint32(w) + 5, Bytes: mem, Size: len(mem), Peers: peers}); err != nil {
			t.Fatal(err)
		}
	}
	peers := make([]netplugin.Region, s.peers)
	for p := range peers {
		peers[p] = region(s.windows, p)
	}
	if err := r.owner.AddWindow(ctx, &Window{ID: uint32(s.windows), Gen: uint32(s.windows) + 5, Size: s.bytes, Peers: peers, Signals: true}); err != nil {
		t.Fatal(err)
	}
	if err := r.owner.AddDevComm(ctx, r.dc); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) queue(ctx, peer int) *abi.Queue {
	q := r.dc.ABI.Queue(ctx*r.peers + peer)
	return &q
}

// put writes a descriptor as a kernel does, and its cell; false when there is no room.
func (r *rig) put(ctx, peer int, d abi.Desc, cell []byte, hint bool) bool {
	q := r.queue(ctx, peer)
	ticket := q.Prod.Raw().Ticket
	if int64(gpu.Load(gpu.PtrTo(&q.Index.Raw().Consumed), gpu.Acquire, gpu.ScopeSys)+q.Mask+1-ticket) <= 0 {
		return false
	}
	gpu.Store(gpu.PtrTo(&q.Prod.Raw().Ticket), ticket+1, gpu.Relaxed, gpu.ScopeSys)
	r.write(q, ticket, d, cell)
	if hint {
		gpu.Store(q.Hint, uint32(ticket+1), gpu.Relaxed, gpu.ScopeSys)
	}
	return true
}

func (r *rig) write(q *abi.Queue, ticket uint64, d abi.Desc, cell []byte) {
	phase := ((ticket>>q.Shift)&1 ^ 1) << 63
	slot := int(ticket & q.Mask)
	for i := 0; i < len(cell); i += abi.CellWordPayload {
		v := phase
		for j, b := range cell[i:min(i+abi.CellWordPayload, len(cell))] {
			v |= uint64(b) << (8 * j)
		}
		gpu.Store(q.Cells.At(slot*abi.CellWords+i/abi.CellWordPayload), v, gpu.Release, gpu.ScopeSys)
	}
	var w [abi.DescWords]uint64
	d.Encode(&w, phase)
	for i, v := range w {
		gpu.Store(q.Slots.At(slot*abi.DescWords+i), v, gpu.Release, gpu.ScopeSys)
	}
}

// at makes the descriptor's signal one at an address, in the window of signals behind the others.
func (r *rig) at(d *abi.Desc, off uint64) {
	d.Flags |= abi.FlagAtAddress
	d.SigID, d.SigGen, d.SigOff = uint32(r.windows), uint32(r.windows)+5, off
}

// desc is a good descriptor to begin with.
func (r *rig) desc(op uint8, window int, size, dst, src uint64) abi.Desc {
	d := abi.Desc{Op: op, Version: abi.DescVersion, Size: size, DstOff: dst, Src: src}
	if op != abi.OpSignal {
		d.DstWin, d.DstGen = uint32(window), uint32(window)+5
	}
	if op == abi.OpPut || op == abi.OpGet {
		d.SrcWin = uint32(window)
	}
	return d
}

func (r *rig) status(ctx, peer int) abi.Status {
	return abi.Status(gpu.Load(r.dc.ABI.Status.At(ctx*r.peers+peer), gpu.Acquire, gpu.ScopeSys))
}

// taken and completed are how many operations of a queue were taken, and have ended without a gap.
func (r *rig) taken(ctx, peer int) int {
	q := r.queue(ctx, peer)
	return int(gpu.Load(gpu.PtrTo(&q.Index.Raw().Consumed), gpu.Acquire, gpu.ScopeSys) - FirstTicket(q.Mask+1))
}

func (r *rig) completed(ctx, peer int) int {
	q := r.queue(ctx, peer)
	return int(gpu.Load(gpu.PtrTo(&q.Index.Raw().Completed), gpu.Acquire, gpu.ScopeSys) - FirstTicket(q.Mask+1))
}

func (r *rig) counter(ctx, id int) uint64 {
	return gpu.Load(r.dc.ABI.Counter.At(ctx*r.counters+id), gpu.Acquire, gpu.ScopeSys)
}

// until passes until f is true.
func (r *rig) until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testBound); !f(); r.owner.Pass() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", testBound, what)
		}
	}
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testBound); !f(); time.Sleep(50 * time.Microsecond) { // sleep: another goroutine is looked at, and must not be helped
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", testBound, what)
		}
	}
}

var errNet = fmt.Errorf("the network failed")
