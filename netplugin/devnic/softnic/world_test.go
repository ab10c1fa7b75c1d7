// SPDX-License-Identifier: Apache-2.0

package softnic_test

import (
	"encoding/binary"
	"math/bits"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	_ "github.com/doorbell-net/doorbell/netplugin/devnic/softnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
	_ "github.com/doorbell-net/doorbell/netplugin/dma"
	_ "github.com/doorbell-net/doorbell/netplugin/fault"
	"github.com/doorbell-net/doorbell/netplugin/plugintest"
	_ "github.com/doorbell-net/doorbell/netplugin/shm"
)

// limit bounds what a right NIC does within a few polls.
const limit = 10 * time.Second

// host is a rank: its NIC, and what the NIC told of.
type host struct {
	devnic.NIC
	wire   netplugin.Endpoint
	far    bool // only the device reaches its memory but for signals
	failed []devnic.Failure
	pages  int // that it took
}

// counted is a wire that counts what it takes, may say "again", and may refuse signals.
type counted struct{ netplugin.Plugin }

type counting struct {
	netplugin.Endpoint
	ops     int
	again   int // times that it takes nothing
	refuses bool
}

type countWrapper struct{}

func init() { netplugin.RegisterWrapper(countWrapper{}) }

func (countWrapper) Name() string { return "counted" }
func (countWrapper) Wrap(p netplugin.Plugin, _ netplugin.Faults) (netplugin.Plugin, error) {
	return counted{p}, nil
}

func (p counted) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	e, err := p.Plugin.Open(c)
	return &counting{Endpoint: e}, err
}

func (e *counting) Post(ops []netplugin.Op) int {
	if e.again > 0 {
		e.again--
		return 0
	}
	for i := range ops {
		e.ops++
		if e.refuses && ops[i].Raise {
			ops[i].State, ops[i].Err = netplugin.Failed, netplugin.ErrBounds
			return i + 1
		}
		if e.Endpoint.Post(ops[i:i+1]) == 0 {
			return i
		}
	}
	return len(ops)
}

// lines is zeroed memory, aligned to lines.
func lines(n int) []byte {
	b := make([]byte, n+64)
	return b[-gpu.PtrOf(b).Addr()&63:][:n:n]
}

// world makes NICs over a wire within this process. Over one that has DeviceMemory that is where memory lies.
func world(t testing.TB, ranks int, wire, faults string) []*host {
	t.Helper()
	p, err := netplugin.Lookup(wire, netplugin.Faults{Text: faults})
	if err != nil {
		t.Fatal(err)
	}
	provider, err := devnic.Lookup("softnic")
	if err != nil {
		t.Fatal(err)
	}
	far := p.Powers().DeviceMemory
	if far {
		p = &plugintest.OnDevice{Plugin: p}
	}
	hosts := make([]*host, ranks)
	for r := range hosts {
		e, err := p.Open(netplugin.Config{Rank: r, Ranks: ranks, Timeout: limit})
		if err != nil {
			t.Fatal(err)
		}
		h := &host{wire: e, far: far}
		h.NIC, err = provider.Open(devnic.Config{
			Rank: r, Ranks: ranks, Wire: e, Powers: p.Powers(),
			Pinned: func(n int) (gpu.Ptr[byte], func() error, error) {
				h.pages++
				return gpu.PtrOf(lines(n)), func() error { return nil }, nil
			},
			Failed: func(f devnic.Failure) { h.failed = append(h.failed, f) },
		})
		if err != nil {
			t.Fatal(err)
		}
		if !h.Facts().Emulated {
			t.Error("softnic does not say that it is emulated")
		}
		hosts[r] = h
		t.Cleanup(func() {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return hosts
}

// queue is a queue pair as a kernel has it.
type queue struct {
	devnic.QP
	nic        *host
	depth      uint64
	send, done gpu.Ptr[uint64]
	record     gpu.Ptr[uint32]
	next       uint64 // WQE to be written next
	seen       uint64 // CQEs below it were seen
}

func create(t testing.TB, h *host, peer, depth int) *queue {
	t.Helper()
	return createTold(t, h, peer, depth, gpu.Ptr[uint64]{})
}

// createTold is create of a queue pair that has a word for the peer's end.
func createTold(t testing.TB, h *host, peer, depth int, ended gpu.Ptr[uint64]) *queue {
	t.Helper()
	q := &queue{
		nic: h, depth: uint64(depth), next: wqe.FirstIndex, seen: wqe.FirstIndex,
		send: gpu.Cast[uint64](gpu.PtrOf(lines(depth * wqe.Bytes))), done: gpu.Cast[uint64](gpu.PtrOf(lines(depth * wqe.Bytes))),
		record: gpu.Cast[uint32](gpu.PtrOf(lines(64))),
	}
	for i := range depth {
		q.done.At(i*wqe.Words + wqe.TailWord).Store(uint64(wqe.EmptyTail))
	}
	var err error
	if q.QP, err = h.Create(devnic.QPConfig{Peer: peer, Depth: depth, Send: q.send, Done: q.done, Record: q.record, Ended: ended}); err != nil {
		t.Fatal(err)
	}
	return q
}

// join makes and connects queue pairs of two ranks, one of each way.
func join(t testing.TB, hosts []*host, a, b, depth int) (ab, ba *queue) {
	t.Helper()
	ab, ba = create(t, hosts[a], b, depth), create(t, hosts[b], a, depth)
	for _, err := range []error{hosts[a].Connect(ab.Number, ba.Address), hosts[b].Connect(ba.Number, ab.Address)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return ab, ba
}

// post writes a WQE that build makes; bell tells the NIC of all that were written.
func (q *queue) post(build func(b *wqe.Block, index uint64)) {
	var b wqe.Block
	build(&b, q.next)
	q.put(b)
}

func (q *queue) put(b wqe.Block) {
	at := q.send.At(int(q.next%q.depth) * wqe.Words)
	for i, w := range b {
		gpu.Store(at.At(i), w, gpu.Relaxed, gpu.ScopeSys)
	}
	q.next++
}

func (q *queue) bell() {
	gpu.Store(q.record, wqe.Record(q.next), gpu.Release, gpu.ScopeSys)
	last := q.send.At(int((q.next-1)%q.depth) * wqe.Words)
	gpu.Store(q.Bell, gpu.Load(last, gpu.Relaxed, gpu.ScopeSys), gpu.Release, gpu.ScopeSys)
}

// wait polls until each WQE has its CQE, and gives those, checked for order and owner.
func (q *queue) wait(t testing.TB) (all []wqe.CQE) {
	t.Helper()
	for deadline := time.Now().Add(limit); q.seen != q.next; {
		at := q.done.At(int(q.seen%q.depth) * wqe.Words)
		tail := wqe.Tail(gpu.Load(at.At(wqe.TailWord), gpu.Acquire, gpu.ScopeSys))
		if tail.Is() == wqe.CQEInvalid || tail.Ahead(q.seen) < 0 {
			if time.Now().After(deadline) {
				t.Fatalf("WQE %d has no CQE; failures: %v", q.seen-wqe.FirstIndex, q.nic.failed)
			}
			q.nic.Poll()
			continue
		}
		var b wqe.Block
		for i := range b {
			b[i] = gpu.Load(at.At(i), gpu.Relaxed, gpu.ScopeSys)
		}
		c := b.DecodeCQE()
		lap := q.seen >> bits.TrailingZeros64(q.depth)
		if c.Index != uint16(q.seen) || c.Number != q.Number || uint64(c.Owner) != lap&1 {
			t.Fatalf("CQE of WQE %d says %+v", q.seen-wqe.FirstIndex, c)
		}
		all = append(all, c)
		q.seen++
	}
	if !q.nic.Idle(q.Number) {
		t.Error("all WQEs have ended, and the NIC is not idle")
	}
	return all
}

// ok is wait for WQEs that succeed.
func (q *queue) ok(t testing.TB) {
	t.Helper()
	for i, c := range q.wait(t) {
		if c.Is != wqe.CQEDone {
			t.Fatalf("WQE %d of %d: %+v; failures: %v", i, q.next-wqe.FirstIndex, c, q.nic.failed)
		}
	}
}

// share registers memory of a rank, and gives each rank's key for it.
func share(t testing.TB, hosts []*host, owner int, mem []byte, signals bool) (keys []uint32, export []byte) {
	t.Helper()
	k, err := netplugin.Key{Map: mem, Size: len(mem)}, error(nil)
	if hosts[owner].far && !signals {
		k.Map, k.Dev = nil, gpu.PtrOf(mem)
		k.Bytes, err = hosts[owner].ExportDevice(k.Dev, k.Size)
	} else {
		k.Bytes, err = hosts[owner].Export(mem, signals)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		key, err := h.Import(owner, k)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, uint32(key))
	}
	return keys, k.Bytes
}

func word(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
