// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

const (
	page    = 4096
	words   = 64 // of a rank's signals; the last ones are the fences'
	poison  = netplugin.State(0xee)
	maxPoll = 5
)

// world is some ranks, their endpoints and memory, and what that memory must hold.
type world struct {
	t      testing.TB
	h      Harness
	powers netplugin.Powers
	rng    *rand.Rand
	bytes  *rand.ChaCha8
	ranks  []*member
	size   int // of a rank's data
	token  uint64
	lanes  map[lane]*laneState
	look   func() // looks at memory after each call of an endpoint, if it is set
}

type member struct {
	ep     netplugin.Endpoint
	closed bool
	data   memory
	sigs   memory
	signal [words]uint64      // what sigs must hold
	toData []netplugin.Region // by rank: its data and signals, on this rank's endpoint
	toSigs []netplugin.Region
	flying map[uint64]flight
	done   [maxPoll]netplugin.Completion
}

// memory is a region between guards: a write past either end shows.
type memory struct {
	all, mem   []byte // mem's capacity reaches over the guard behind it
	wantAll    []byte // what all must hold
	want       []byte // what mem must hold
	key        []byte
	start, end int
}

// lane is what operations are ordered in.
type lane struct {
	from    int
	context int32
	to      int32
}

type laneState struct {
	posted    int
	good      int  // the last operation that was done
	failed    int  // the first that failed, 0: none
	unsettled bool // posted to since the last fence
}

type flight struct {
	op *netplugin.Op
	ln lane
	at int // in its lane, from 1
}

func newWorld(t testing.TB, h Harness, size int) *world {
	t.Helper()
	w := openWorld(t, h, size)
	if err := w.meet(); err != nil {
		t.Fatal(err)
	}
	w.introduce()
	return w
}

// openWorld makes endpoints and memory of ranks that have not met.
func openWorld(t testing.TB, h Harness, size int) *world {
	t.Helper()
	w := &world{
		t: t, h: h, powers: h.Plugin.Powers(), rng: rand.New(rand.NewPCG(h.Seed, uint64(size))), size: size,
		bytes: rand.NewChaCha8([32]byte(binary.NativeEndian.AppendUint64(make([]byte, 24, 32), h.Seed))),
		lanes: map[lane]*laneState{}, token: h.Seed,
	}
	for r := range h.Ranks {
		c := netplugin.Config{Rank: r, Ranks: h.Ranks, Auth: auth(r), Timeout: h.Deadline}
		if h.epoch != nil {
			c.Epoch = h.epoch(r)
		}
		ep, err := h.Plugin.Open(c)
		if err != nil {
			t.Fatalf("open rank %d of %d: %v", r, h.Ranks, err)
		}
		m := &member{ep: ep, flying: map[uint64]flight{}, data: guarded(size), sigs: guarded(8 * words)}
		t.Cleanup(func() {
			if !m.closed {
				ep.Close()
			}
		})
		clear(m.sigs.mem)
		clear(m.sigs.want)
		w.ranks = append(w.ranks, m)
		m.data.key = w.export(r, m.data.mem, false)
		m.sigs.key = w.export(r, m.sigs.mem, true)
	}
	return w
}

// introduce makes each rank's memory known to all.
func (w *world) introduce() {
	w.t.Helper()
	for r, m := range w.ranks {
		for p := range w.ranks {
			m.toData = append(m.toData, w.use(r, p, &w.ranks[p].data))
			m.toSigs = append(m.toSigs, w.use(r, p, &w.ranks[p].sigs))
		}
	}
}

func guarded(n int) memory {
	all := make([]byte, n+3*page)
	start := page + int(-gpu.PtrOf(all).Addr()&(page-1))
	for i := range 251 {
		all[i] = byte(i) | 1
	}
	for n := 251; n < len(all); n *= 2 {
		copy(all[n:], all[:n])
	}
	want := slices.Clone(all)
	return memory{all: all, mem: all[start : start+n], wantAll: want, want: want[start : start+n], start: start, end: start + n}
}

func (w *world) export(r int, mem []byte, signals bool) []byte {
	w.t.Helper()
	key, err := w.ranks[r].ep.Export(mem, signals)
	if err != nil {
		w.t.Fatalf("export %d bytes of rank %d (signals %v): %v", len(mem), r, signals, err)
	}
	return key
}

// key is what a peer learns of a region in this process.
func (w *world) key(m *memory) netplugin.Key {
	k := netplugin.Key{Bytes: slices.Clone(m.key), Size: len(m.mem)}
	if w.powers.Mapped {
		k.Map = m.mem
	}
	return k
}

// use imports a region of rank p on rank r.
func (w *world) use(r, p int, m *memory) netplugin.Region {
	w.t.Helper()
	got, err := w.ranks[r].ep.Import(p, w.key(m))
	if err != nil {
		w.t.Fatalf("import region of rank %d on rank %d: %v", p, r, err)
	}
	if got == 0 {
		w.t.Fatalf("import region of rank %d on rank %d: got the zero Region, which is none", p, r)
	}
	return got
}

// put is an operation from one rank to another's data, without a signal.
func (w *world) put(from, to int, context int32, off int, data []byte) netplugin.Op {
	return netplugin.Op{
		Kind: netplugin.Put, Strong: true, Context: context, Peer: int32(to),
		Dst: w.ranks[from].toData[to], DstOff: uint64(off), Data: data,
	}
}

// raising is op with a signal.
func (w *world) raising(from int, op netplugin.Op, word int, add uint64) netplugin.Op {
	op.Raise, op.SigDst, op.SigOff, op.SigAdd = true, w.ranks[from].toSigs[op.Peer], uint64(8*word), add
	return op
}

// signal is an operation that is nothing but a signal.
func (w *world) signal(from, to int, context int32, word int, add uint64) netplugin.Op {
	return w.raising(from, netplugin.Op{Kind: netplugin.Signal, Strong: true, Context: context, Peer: int32(to)}, word, add)
}

// expect makes the model hold what op does.
func (w *world) expect(op *netplugin.Op) {
	to := w.ranks[op.Peer]
	if op.Kind == netplugin.Put {
		copy(to.data.want[op.DstOff:], op.Data)
	}
	if op.Raise {
		to.signal[op.SigOff/8] += op.SigAdd
	}
}

// random is n random bytes.
func (w *world) random(n int) []byte {
	b := make([]byte, n)
	w.bytes.Read(b)
	return b
}

// word is what a rank's signal holds now. What it covers is visible.
func (w *world) word(r, word int) uint64 {
	return gpu.Load(gpu.Cast[uint64](gpu.PtrOf(w.ranks[r].sigs.mem)).At(word), gpu.Acquire, gpu.ScopeSys)
}

// send posts operations, expects what they do, and waits until they are done.
func (w *world) send(from int, ops ...netplugin.Op) {
	w.t.Helper()
	for i := range ops {
		w.expect(&ops[i])
	}
	n := w.post(from, ops)
	w.finish()
	for i := range ops[:n] {
		if ops[i].State == netplugin.Failed {
			w.t.Fatalf("rank %d to rank %d: operation %d of %d failed: %v", from, ops[i].Peer, i, len(ops), ops[i].Err)
		}
	}
}

// deadline fails the test when the world's time for one wait is over.
func (w *world) deadline(what string) func() {
	end := time.Now().Add(w.h.Deadline)
	return func() {
		w.t.Helper()
		if time.Now().After(end) {
			w.t.Fatalf("%s: no end within %v", what, w.h.Deadline)
		}
	}
}

// diff says where memory differs from the model, "" if nowhere.
func (w *world) diff() string {
	for r, m := range w.ranks {
		if s := m.data.diff(); s != "" {
			return fmt.Sprintf("data of rank %d: %s", r, s)
		}
		a, b := &m.sigs, m.signal[:]
		if !bytes.Equal(a.all[:a.start], a.wantAll[:a.start]) || !bytes.Equal(a.all[a.end:], a.wantAll[a.end:]) {
			return fmt.Sprintf("signals of rank %d: bytes before or behind the region were written", r)
		}
		for i, want := range b {
			if got := w.word(r, i); got != want {
				return fmt.Sprintf("signal %d of rank %d is %d, want %d", i, r, got, want)
			}
		}
	}
	return ""
}

func (m *memory) diff() string {
	if bytes.Equal(m.all, m.wantAll) {
		return ""
	}
	n, first := 0, -1
	for i := range m.all {
		if m.all[i] != m.wantAll[i] {
			if n++; first < 0 {
				first = i
			}
		}
	}
	return fmt.Sprintf("%d bytes are wrong, the first at offset %d of %d: %#x, want %#x", n, first-m.start, len(m.mem), m.all[first], m.wantAll[first])
}

// verify waits until all that was posted has taken effect, and compares memory with the model. what says after what.
func (w *world) verify(what string) {
	w.t.Helper()
	sure := w.settle()
	late := w.deadline(what + ": " + w.diff())
	for w.diff() != "" && !sure {
		w.step()
		late()
	}
	for range 3 { // nothing comes later
		if d := w.diff(); d != "" {
			w.t.Fatalf("%s: %s", what, d)
		}
		w.step()
	}
}
