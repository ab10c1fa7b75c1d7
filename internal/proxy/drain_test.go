// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/testenv"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/shm"
)

// shmRig is a rig over the real shm network, whose windows stand among guard bytes.
type shmRig struct {
	*rig
	all     []byte   // all memory that the network knows, guards between
	spans   [][2]int // windows in it
	signals [][]byte // by peer
}

const guard = 512

func newShmRig(t testing.TB, s shape) *shmRig {
	e, err := shm.Plugin{}.Open(netplugin.Config{Rank: 0, Ranks: s.peers})
	if err != nil {
		t.Fatal(err)
	}
	f := &shmRig{}
	f.all = bytes.Repeat([]byte{0x5a}, guard+(s.bytes+guard)*(s.windows+1)*s.peers)
	use := func(mem []byte) netplugin.Region {
		r, err := e.Import(1, netplugin.Key{Map: mem, Size: len(mem)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var sigs []netplugin.Region
	for range s.peers {
		mem := make([]byte, 8*s.contexts*s.signals)
		f.signals = append(f.signals, mem)
		sigs = append(sigs, use(mem))
	}
	f.rig = newRig(t, s, e, func(w, p int) netplugin.Region {
		at := guard + (s.bytes+guard)*(w*s.peers+p)
		f.spans = append(f.spans, [2]int{at, at + s.bytes})
		return use(f.all[at : at+s.bytes])
	}, sigs)
	return f
}

func (f *shmRig) guards(t testing.TB) {
	t.Helper()
	at := 0
	for _, s := range append(f.spans, [2]int{len(f.all), len(f.all)}) {
		if i := bytes.IndexFunc(f.all[at:s[0]], func(r rune) bool { return r != 0x5a }); i >= 0 {
			t.Fatalf("byte %d outside of all windows was written", at+i)
		}
		at = s[1]
	}
}

// FuzzDrain writes any words into slots and cells, some of them changed while they are read for the second time:
// nothing panics, no byte outside a window changes, and a queue either goes on or has failed.
func FuzzDrain(f *testing.F) {
	s := shape{contexts: 2, peers: 2, depth: 4, signals: 2, counters: 2, windows: 2, cells: true, maxBytes: abi.CellPayload, bytes: 1000}
	good := (&rig{}).desc(abi.OpPut, 1, 900, 50, 30)
	good.Flags, good.SigID, good.Counter = abi.FlagSignalInc|abi.FlagStrong|abi.FlagCounter, 1, 1
	for _, change := range []func(d *abi.Desc){
		func(*abi.Desc) {},
		func(d *abi.Desc) { d.Op, d.Size, d.SrcWin = abi.OpPutValue, 8, 0 },
		func(d *abi.Desc) { d.Op, d.Size, d.SrcWin = abi.OpPutCell, 256, 0 },
		func(d *abi.Desc) { d.Op, d.Size = abi.OpSignal, 0 },
		func(d *abi.Desc) { d.Op, d.Flags = abi.OpGet, abi.FlagCounter },
		func(d *abi.Desc) { d.Op = abi.OpGet }, // with a signal, which it cannot have
		func(d *abi.Desc) { (&rig{shape: s}).at(d, 16) },
		func(d *abi.Desc) { (&rig{shape: s}).at(d, 1<<63-8) },
		func(d *abi.Desc) { d.DstWin, d.DstGen = uint32(s.windows), uint32(s.windows)+5 },
		func(d *abi.Desc) { d.DstOff = 1<<63 - 1 },
		func(d *abi.Desc) { d.Src, d.Size = 1<<64-1, 1<<48-1 },
		func(d *abi.Desc) { d.SigID = 1<<32 - 1 },
		func(d *abi.Desc) { d.Counter = 1<<31 - 1 },
		func(d *abi.Desc) { d.DstWin, d.SrcWin = 1<<32-1, 1<<31 },
	} {
		d := good
		change(&d)
		var w [abi.DescWords]uint64
		d.Encode(&w, 0)
		b := make([]byte, 0, 4+8*abi.DescWords)
		b = append(b, 0, 0, 1, 0)
		for _, v := range w {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		f.Add(append(b, b...), uint8(200))
		f.Add(b, uint8(0))
	}
	f.Fuzz(func(t *testing.T, in []byte, cell uint8) {
		r := newShmRig(t, s)
		passes := 0
		for len(in) >= 4+8*abi.DescWords {
			ctx, peer, write, again := int(in[0])%s.contexts, int(in[1])%s.peers, in[2], in[3]
			q := r.queue(ctx, peer)
			ticket := q.Prod.Raw().Ticket
			if write&2 == 0 {
				q.Prod.Raw().Ticket++ // else: into the slot of one that was written before
			} else {
				ticket--
			}
			phase := ((ticket>>q.Shift)&1 ^ 1) << 63
			slot := int(ticket & q.Mask)
			for i := range abi.CellWords {
				q.Cells.At(slot*abi.CellWords + i).Store(uint64(cell)*0x0101010101010101&^abi.PhaseBit | phase)
			}
			for i := range abi.DescWords {
				v := binary.LittleEndian.Uint64(in[4+8*i:])
				if write&1 != 0 || i == 3 && write&4 != 0 {
					v = v&^abi.PhaseBit | phase
				}
				q.Slots.At(slot*abi.DescWords + i).Store(v)
			}
			gpu.Store(q.Hint, uint32(ticket+1), gpu.Relaxed, gpu.ScopeSys)
			in = in[4+8*abi.DescWords:]
			for range 1 + int(again)%3 {
				if passes++; again&4 == 0 {
					r.owner.Pass()
				}
			}
			r.guards(t)
			if c := r.completed(ctx, peer); c < 0 || c > r.taken(ctx, peer) || r.taken(ctx, peer) > int(q.Prod.Raw().Ticket-FirstTicket(q.Mask+1)) && write&2 == 0 {
				t.Fatalf("completed %d, consumed %d", c, r.taken(ctx, peer))
			}
		}
		if len(r.owner.tab.free) != len(r.owner.tab.e)-cutting(r.rig) {
			t.Fatalf("entries are lost: %d of %d are free", len(r.owner.tab.free), len(r.owner.tab.e))
		}
	})
}

// cutting is how many entries belong to operations whose later pieces are still to come.
func cutting(r *rig) (n int) {
	for _, q := range r.dc.queues {
		if q.cutEntry != none {
			n++
		}
	}
	return n
}

// TestChangedWhileCut changes a descriptor after its first piece has left. What goes out is what was read at first, or
// it is refused; nothing panics.
func TestChangedWhileCut(t *testing.T) {
	s := shape{contexts: 1, peers: 1, depth: 4, signals: 1, counters: 1, windows: 2, maxBytes: 256, bytes: 2000}
	for name, change := range map[string]func(d *abi.Desc){
		"shorter than what has left": func(d *abi.Desc) { d.Size = 100 },
		"longer":                     func(d *abi.Desc) { d.Size = 1999 },
		"value":                      func(d *abi.Desc) { d.Op, d.Size = abi.OpPutValue, 8 },
		"signal":                     func(d *abi.Desc) { d.Op, d.Size = abi.OpSignal, 0 },
		"other window":               func(d *abi.Desc) { d.DstWin, d.DstGen = 1, 6 },
		"other source":               func(d *abi.Desc) { d.SrcWin, d.Src = 1, 900 },
		"no window":                  func(d *abi.Desc) { d.DstWin = 77 },
		"other phase":                func(d *abi.Desc) {},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeRig(t, s, rand.New(rand.NewPCG(1, 1)), 0)
			f.net.again = 0
			d := f.desc(abi.OpPut, 0, 1000, 100, 200)
			d.Flags = abi.FlagSignalInc | abi.FlagStrong | abi.FlagCounter
			f.produce(0, 0, d, nil, true)
			one := f.owner
			q := f.queueOf(0, 0)
			if used := one.drain(q, 1); used == 0 || q.cut == 0 {
				t.Fatalf("the first piece did not leave alone: cut %d", q.cut)
			}
			changed := d
			change(&changed)
			slot := f.queue(0, 0)
			ticket := FirstTicket(4)
			if name == "other phase" {
				ticket += 4
			}
			f.write(slot, ticket, changed, nil)
			for range 20 {
				f.owner.Pass()
			}
			if err := f.check(); err != nil && f.status(0, 0) == abi.OK {
				t.Error(err)
			}
			if f.status(0, 0) == abi.OK && f.completed(0, 0) != 1 {
				t.Error("it neither ended nor failed")
			}
		})
	}
}

// TestLostHints has descriptors of which no hint tells, in many queues; all are found, also while others keep the owner
// busy.
func TestLostHints(t *testing.T) {
	for _, s := range []shape{{contexts: 1, peers: 4}, {contexts: 4, peers: 4}, {contexts: 17, peers: 1}, {contexts: 8, peers: 8}, {contexts: 40, peers: 16}} {
		s.depth, s.signals, s.maxBytes = 256, 1, 1<<20
		for _, busy := range []int{0, 1, 3} {
			f := newFakeRig(t, s, testenv.Random(t), 0)
			work := func() { // queues that always have more than a pass takes
				for i := range busy {
					for f.put(i%s.contexts, i/s.contexts, f.signal(), nil, true) {
					}
				}
			}
			work()
			for range 20 {
				f.owner.Pass()
				work()
			}
			for q := busy; q < s.contexts*s.peers; q++ {
				f.put(q%s.contexts, q/s.contexts, f.signal(), nil, false)
			}
			start := time.Now()
			passes := 0
			for left := true; left; passes++ {
				if time.Since(start) > testBound {
					t.Fatalf("%d queues, %d of them busy: a descriptor without a hint is not found in %d passes", s.contexts*s.peers, busy, passes)
				}
				f.owner.Pass()
				work()
				left = false
				for q := busy; q < s.contexts*s.peers; q++ {
					left = left || f.taken(q%s.contexts, q/s.contexts) == 0
				}
			}
			t.Logf("%d queues, %d busy: all found after %d passes, %v", s.contexts*s.peers, busy, passes, time.Since(start))
		}
	}
}

func (r *rig) signal() abi.Desc {
	d := r.desc(abi.OpSignal, 0, 0, 0, 0)
	d.Flags = abi.FlagSignalInc | abi.FlagStrong
	return d
}

// TestFullTable has a network that ends nothing: the owner takes as many as its table holds and no more, and goes on
// when some end. There are one fewer than that, as many, one more, and many more.
func TestFullTable(t *testing.T) {
	for _, table := range []int{1, 2, 31, 32, 33, 128, 1024, 2048} {
		for _, total := range []int{table - 1, table, table + 1, 2*table + 100} {
			s := shape{contexts: 1, peers: 2, depth: 4096, signals: 1, counters: 1, maxBytes: 1 << 20}
			f := newFakeRig(t, s, testenv.Random(t), table)
			f.net.late = 1
			for i := range total {
				d := f.signal()
				d.Flags |= abi.FlagCounter
				f.produce(0, i%2, d, nil, true)
			}
			for ended := 0; ; {
				for range 100 {
					f.owner.Pass()
				}
				if got, want := f.taken(0, 0)+f.taken(0, 1), min(ended+table, total); got != want {
					t.Fatalf("table of %d, %d of %d ended: %d were taken, want %d", table, ended, total, got, want)
				}
				if err := f.check(); err != nil {
					t.Fatal(err)
				}
				if ended == total {
					break
				}
				n := min(1+table/3, total-ended)
				f.net.land(n)
				ended += n
			}
			f.until(t, "all have ended", func() bool { return f.counter(0, 0) == uint64(total) })
		}
	}
}

// TestAgainAtEachPost has the network ask for patience before one operation, or one piece of a cut one: none is lost, none
// goes twice.
func TestAgainAtEachPost(t *testing.T) {
	s := shape{contexts: 1, peers: 2, depth: 16, signals: 1, counters: 1, windows: 1, maxBytes: 100, bytes: 1000}
	for _, late := range []float64{0, 0.5, 1} {
		for nth := range 14 {
			f := newFakeRig(t, s, testenv.Random(t), 4)
			f.net.late, f.net.refuse = late, map[int]int{nth: 3}
			for p := range s.peers {
				for i, size := range []uint64{8, 250, 0, 100} { // 6 posts
					d := f.desc(abi.OpPut, 0, size, uint64(300*i), 0)
					d.Flags = abi.FlagSignalInc | abi.FlagStrong | abi.FlagCounter
					f.produce(0, p, d, nil, true)
				}
				f.produce(0, p, f.desc(abi.OpGet, 0, 50, 0, 900), nil, true)
			}
			f.until(t, "all is through", func() bool {
				f.net.land(100)
				return f.through()
			})
			if err := f.check(); err != nil {
				t.Errorf("again at post %d: %v", nth, err)
			}
			if f.net.posted != 14 || f.net.refuse[nth] != 0 || f.counter(0, 0) != 8 {
				t.Errorf("again at post %d: %d operations were taken (want 14), %d refusals are left, %d were counted (want 8)", nth, f.net.posted, f.net.refuse[nth], f.counter(0, 0))
			}
		}
	}
}

// TestRemoveEnds removes device communicators and windows while operations are on their way that never end: it ends
// with its context, and later ends of operations do no harm.
func TestRemoveEnds(t *testing.T) {
	s := shape{contexts: 2, peers: 2, depth: 16, signals: 1, counters: 1, windows: 1, maxBytes: 100, bytes: 1000}
	f := newFakeRig(t, s, testenv.Random(t), 0)
	f.net.late = 1
	d := f.desc(abi.OpPut, 0, 950, 0, 0)
	f.produce(1, 1, d, nil, true)
	f.produce(0, 1, d, nil, true)
	for range 10 {
		f.owner.Pass()
	}
	for what, remove := range map[string]func(context.Context) error{
		"window": func(ctx context.Context) error { return f.owner.RemoveWindow(ctx, 0) },
		"comm":   func(ctx context.Context) error { return f.owner.RemoveDevComm(ctx, f.dc) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		ended := make(chan error, 1)
		go func() { ended <- remove(ctx) }()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "rank 0") || !strings.Contains(err.Error(), "deadline") {
				t.Errorf("remove %s: %v", what, err)
			}
		case <-time.After(testBound):
			t.Fatalf("remove %s does not end", what)
		}
		cancel()
	}
	if len(f.owner.queues) != 0 {
		t.Error("queues are still served, whose memory their communicator gives back")
	}
	f.net.land(1000)
	f.until(t, "all has ended", func() bool { return f.owner.flying == 0 })
	if free := len(f.owner.tab.free); free != len(f.owner.tab.e) {
		t.Errorf("%d of %d entries are free", free, len(f.owner.tab.e))
	}
	if c := f.counter(1, 0); c != 0 {
		t.Error("a counter was raised in memory that is given back")
	}
}

// losses is a machine that does nothing but to count whom it loses.
type losses []int

func (*losses) Poll() bool   { return false }
func (*losses) Quiet() bool  { return true }
func (l *losses) Lose(p int) { *l = append(*l, p) }

// TestLose loses a peer, which it is told of twice, while operations to it are on their way and others are in their slots.
func TestLose(t *testing.T) {
	s := shape{contexts: 2, peers: 3, depth: 16, signals: 1, counters: 1, windows: 1, maxBytes: 100, bytes: 1000}
	f := newFakeRig(t, s, testenv.Random(t), 0)
	f.net.late = 1
	for range 5 {
		for p := range 3 {
			d := f.desc(abi.OpPut, 0, 950, 0, 0)
			d.Flags = abi.FlagCounter
			f.produce(0, p, d, nil, true)
		}
	}
	f.owner.Pass()
	var lost losses
	err := f.owner.Attach(t.Context(), &lost)
	for range 2 {
		err = errors.Join(err, f.owner.Lose(t.Context(), 1))
	}
	if err != nil || !slices.Equal(lost, losses{1}) {
		t.Fatalf("machines lost %v, %v", lost, err)
	}
	f.until(t, "the others are through", func() bool {
		f.net.land(100)
		return f.completed(0, 0) == 5 && f.completed(0, 2) == 5 && f.owner.flying == 0
	})
	for ctx := range 2 {
		for p, want := range []abi.Status{abi.OK, abi.PeerLost, abi.OK} {
			if got := f.status(ctx, p); got != want {
				t.Errorf("context %d, peer %d: %v, want %v", ctx, p, got, want)
			}
		}
	}
	if c := f.dc.Cause(); c == nil || abi.Status(c.Status) != abi.PeerLost || c.Peer != 1 {
		t.Errorf("cause is %+v", c)
	}
	if free := len(f.owner.tab.free); free != len(f.owner.tab.e) {
		t.Errorf("%d of %d entries are free", free, len(f.owner.tab.e))
	}
}
