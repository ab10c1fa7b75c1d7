// SPDX-License-Identifier: Apache-2.0

package dma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/plugintest"
)

func TestConformance(t *testing.T) {
	for name, far := range map[string]bool{"host memory": false, "device memory": true} {
		t.Run(name, func(t *testing.T) {
			plugintest.Run(t, func(testing.TB) plugintest.Harness {
				return plugintest.Harness{Plugin: &plugintest.OnDevice{Plugin: Plugin{}, Far: far}}
			})
		})
	}
}

func says(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	_, err := Plugin{}.Open(netplugin.Config{Rank: 2, Ranks: 2})
	says(t, err, "rank 2 of 2", "0 to ranks-1")
	_, err = Plugin{}.Open(netplugin.Config{Ranks: 1})
	says(t, err, "rank 0", "no copy engines")
	ep, err := (&plugintest.OnDevice{Plugin: Plugin{}, Far: true}).Open(netplugin.Config{Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	_, err = ep.Import(2, netplugin.Key{Size: 8, Map: make([]byte, 8)})
	says(t, err, "rank 2", "0 to 1 are accepted")
	_, err = ep.Import(0, netplugin.Key{Size: 8})
	says(t, err, "0 of its 8 bytes are mapped")
	if err := ep.Close(); err != nil {
		t.Error(err)
	}
	_, err = ep.Export(nil, false)
	says(t, err, "closed")
}

// TestDeviceFails has the device fail: what is queued ends with its error, and nothing waits.
func TestDeviceFails(t *testing.T) {
	dev := &plugintest.OnDevice{Plugin: Plugin{}, Far: true}
	ep, err := dev.Open(netplugin.Config{Ranks: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	mem := make([]byte, 4096)
	r, err := ep.Import(0, netplugin.Key{Map: mem, Size: len(mem)})
	if err != nil {
		t.Fatal(err)
	}
	op := []netplugin.Op{{Kind: netplugin.Put, Dst: r, Data: make([]byte, 1000), Token: 7}}
	if ep.Post(op) != 1 || op[0].State != netplugin.Posted {
		t.Fatalf("not posted: %+v", op[0])
	}
	gone := errors.New("the device is gone")
	dev.Break(gone)
	var done [4]netplugin.Completion
	if n := ep.Poll(done[:]); n != 1 || done[0].Token != 7 || !errors.Is(done[0].Err, gone) {
		t.Errorf("ended %d, %+v; want token 7 with %v", n, done[0], gone)
	}
	if ep.Post(op) != 1 || op[0].State != netplugin.Failed || !errors.Is(op[0].Err, gone) {
		t.Errorf("posted to a device that is gone: %+v", op[0])
	}
}

// byHand is a copier whose items happen when the test says so.
type byHand struct {
	items   []func()
	reached []gpu.Ptr[byte]
	mem     []uint64
	calls   int
	since   int // of items: from where on copies that may begin ahead do
	ahead   int // of those
	broken  error
}

// call is one call of a driver's.
func (c *byHand) call(items ...func()) error {
	if c.calls++; c.broken == nil {
		c.items = append(c.items, items...)
	}
	return c.broken
}

func copying(dst, src gpu.Ptr[byte], n int) func() {
	return func() { copy(gpu.Slice(dst, n), gpu.Slice(src, n)) }
}

func storing(at gpu.Ptr[uint64], v uint64) func() {
	return func() { gpu.Store(at, v, gpu.Release, gpu.ScopeSys) }
}

func (c *byHand) Copy(dst, src gpu.Ptr[byte], n int) error { return c.call(copying(dst, src, n)) }

// Copies does them the other way round.
func (c *byHand) Copies(dst, src []gpu.Ptr[byte], bytes []uint64) error {
	var items []func()
	for i := range slices.Backward(dst) {
		items = append(items, copying(dst[i], src[i], int(bytes[i])))
	}
	return c.call(items...)
}

// Through reads at some time from when it may: a device's other engine may be that far ahead.
func (c *byHand) Through(dst, src gpu.Ptr[byte], n int, via gpu.Ptr[byte], piece int, ahead bool) error {
	if ahead {
		c.ahead++
	} else {
		c.since = len(c.items)
	}
	read := make([]byte, n)
	fill := func() {
		clear(gpu.Slice(via, 2*piece))
		copy(read, gpu.Slice(src, n))
	}
	if c.broken == nil {
		c.items = slices.Insert(c.items, c.since+c.calls%(len(c.items)-c.since+1), fill)
	}
	return c.call(copying(dst, gpu.PtrOf(read), n))
}

func (c *byHand) Store(at gpu.Ptr[uint64], v uint64) error { return c.call(storing(at, v)) }

func (c *byHand) StoreBoth(first gpu.Ptr[uint64], v uint64, second gpu.Ptr[uint64], then uint64) error {
	return c.call(storing(first, v), storing(second, then))
}

func (c *byHand) Reach(far gpu.Ptr[byte], _ int) error {
	c.reached = append(c.reached, far)
	return nil
}

func (c *byHand) Close() error { return nil }

func (c *byHand) Pinned(n int) ([]byte, func() error, error) {
	c.mem = make([]uint64, n/8)
	return gpu.Slice(gpu.Cast[byte](gpu.PtrTo(&c.mem[0])), n), func() error { return nil }, nil
}

func (c *byHand) run() {
	for _, f := range c.items {
		f()
	}
	c.items, c.since = c.items[:0], 0
}

// TestMovesInOrder: a move that the CPU does waits for the device's before it, and holds up those behind it, so that of moves
// to one place the last stays; words are raised in order, each when its bytes are there.
func TestMovesInOrder(t *testing.T) {
	var ended []uint64
	c := new(byHand)
	q, err := NewQueue(func() (netplugin.Copier, error) { return c, nil }, func(token uint64, err error) { ended = append(ended, token) })
	if err != nil {
		t.Fatal(err)
	}
	bytes := func(v byte) []byte { return slices.Repeat([]byte{v}, 512) }
	far := func(b []byte) Side { return Side{Dev: gpu.PtrOf(b)} }
	to, word := make([]byte, 512), uint64(0)
	both := Side{Host: to, Dev: gpu.PtrOf(to)}
	for i, from := range []Side{far(bytes(1)), {Host: bytes(2)}, far(bytes(3)), {Host: bytes(4)}} {
		done, err := q.Push(&Move{To: both, From: from, Bytes: 512, Word: gpu.PtrTo(&word), Add: 1 << (8 * i), Token: uint64(i)})
		if done || err != nil {
			t.Fatalf("move %d: ended %v, %v", i, done, err)
		}
	}
	if q.Poll(); len(ended) != 0 || to[0] != 0 {
		t.Errorf("ended %v, holds %d before the device did anything", ended, to[0])
	}
	c.run()
	if q.Poll(); !slices.Equal(ended, []uint64{0, 1}) || to[511] != 2 || word != 1<<8|1 {
		t.Errorf("after the first copy: ended %v, holds %d, word %#x", ended, to[511], word)
	}
	c.run()
	if q.Poll(); !slices.Equal(ended, []uint64{0, 1, 2, 3}) || to[511] != 4 || word != 1<<24|1<<16|1<<8|1 {
		t.Errorf("at the end: %v, holds %d, word %#x", ended, to[511], word)
	}
	if done, err := q.Push(&Move{To: both, From: Side{Host: bytes(5)}, Bytes: 512}); !done || err != nil || to[0] != 5 {
		t.Errorf("on an idle queue the CPU does it at once: %v, %v, holds %d", done, err, to[0])
	}
	// Within the device, and by value.
	if _, err := q.Push(&Move{To: far(to), From: far(bytes(6)), Bytes: 512, Token: 6}); err != nil {
		t.Error(err)
	}
	if _, err := q.Push(&Move{To: far(to), From: Side{Host: binary.LittleEndian.AppendUint64(nil, 7)}, Bytes: 8, Token: 7}); err != nil {
		t.Error(err)
	}
	_, err = q.Push(&Move{To: far(to), From: Side{Host: bytes(8)}, Bytes: 512})
	says(t, err, "512 bytes", "256 are accepted")
	_, err = q.Push(&Move{To: Side{Host: to}, From: far(to), Bytes: 8})
	says(t, err, "no device reaches")
	says(t, q.Drain(time.Millisecond), "2 moves have not ended")
	c.run()
	q.Poll()
	if !slices.Equal(ended[4:], []uint64{6, 7}) || to[0] != 7 || to[8] != 6 || !q.Idle() {
		t.Errorf("ended %v, holds %d and %d", ended, to[0], to[8])
	}
}

// TestDirectBetweenDevices: between two devices' memory one copy is queued, within one device's two, through the host's memory. In either case the signal is raised when the bytes are there and not before.
func TestDirectBetweenDevices(t *testing.T) {
	for elsewhere, want := range map[bool]int{false: 2, true: 1} {
		c := new(byHand)
		ep, err := Plugin{}.Open(netplugin.Config{Ranks: 2, Copier: func() (netplugin.Copier, error) { return c, nil }})
		if err != nil {
			t.Fatal(err)
		}
		const n = 2 * RoomBytes
		theirs, mine, word := make([]byte, n), slices.Repeat([]byte{7}, n), make([]byte, 8)
		window, err1 := ep.Import(1, netplugin.Key{Dev: gpu.PtrOf(theirs), Size: n, Elsewhere: elsewhere})
		signal, err2 := ep.Import(1, netplugin.Key{Map: word, Size: 8})
		if err1 != nil || err2 != nil || elsewhere != slices.Contains(c.reached, gpu.PtrOf(theirs)) || len(c.reached) > 1 {
			t.Fatalf("elsewhere %v: prepared for copies from %v: %v, %v", elsewhere, c.reached, err1, err2)
		}
		var done [2]netplugin.Completion
		for i, kind := range []netplugin.Kind{netplugin.Put, netplugin.Get} {
			op := []netplugin.Op{{Kind: kind, Peer: 1, Dst: window, Src: gpu.PtrOf(mine), Bytes: n, Raise: true, SigDst: signal, SigAdd: 1}}
			if ep.Post(op) != 1 || op[0].State != netplugin.Posted || len(c.items) != want {
				t.Errorf("elsewhere %v: %d copies, want %d: %+v", elsewhere, len(c.items), want, op[0])
			}
			if ep.Poll(done[:]) != 0 || word[0] != byte(i) {
				t.Errorf("elsewhere %v: the signal came before the bytes", elsewhere)
			}
			c.run()
			if ep.Poll(done[:]) != 1 || word[0] != byte(i+1) || theirs[n-1] != 7 || mine[n-1] != 7 {
				t.Errorf("elsewhere %v: holds %d and %d, signal %d", elsewhere, theirs[n-1], mine[n-1], word[0])
			}
			clear(mine) // before it is got back
		}
	}
}

// TestLongByCPU: a long copy of the CPU is done in parts, one a Poll.
func TestLongByCPU(t *testing.T) {
	c, ended := new(byHand), 0
	q, err := NewQueue(func() (netplugin.Copier, error) { return c, nil }, func(uint64, error) { ended++ })
	if err != nil {
		t.Fatal(err)
	}
	const n = 2*partBytes + 100
	from, to := slices.Repeat([]byte{3}, n), make([]byte, n)
	if done, err := q.Push(&Move{To: Side{Host: to}, From: Side{Host: from}, Bytes: n}); done || err != nil {
		t.Errorf("%d bytes at once: %v", n, err)
	}
	if to[partBytes-1] != 3 || to[partBytes] != 0 || q.Poll() || to[2*partBytes-1] != 3 || to[2*partBytes] != 0 {
		t.Errorf("%d bytes are copied, of %d at a time", bytes.IndexByte(to, 0), partBytes)
	}
	if !q.Poll() || ended != 1 || to[n-1] != 3 {
		t.Errorf("ended %d, the last byte is %d", ended, to[n-1])
	}
}

// TestWordWithItsMark: a word for an idle queue is stored with the mark that tells of it, so that no Poll has to stand between.
func TestWordWithItsMark(t *testing.T) {
	c, ended := new(byHand), 0
	q, err := NewQueue(func() (netplugin.Copier, error) { return c, nil }, func(uint64, error) { ended++ })
	if err != nil {
		t.Fatal(err)
	}
	word, value := make([]uint64, 1), binary.LittleEndian.AppendUint64(nil, 9)
	if _, err := q.Push(&Move{To: Side{Dev: gpu.Cast[byte](gpu.PtrTo(&word[0]))}, From: Side{Host: value}, Bytes: 8}); err != nil {
		t.Error(err)
	}
	q.Flush()
	if c.run(); !q.Poll() || ended != 1 || word[0] != 9 || c.calls != 1 {
		t.Errorf("ended %d, holds %d, by %d calls", ended, word[0], c.calls)
	}
}

// TestMarksOfLongCopies: of long copies to another device that are on their way together, several are told of by one mark; the
// first, and the last when the mark before has come, by one of their own.
func TestMarksOfLongCopies(t *testing.T) {
	var ended []uint64
	c := new(byHand)
	q, err := NewQueue(func() (netplugin.Copier, error) { return c, nil }, func(token uint64, _ error) { ended = append(ended, token) })
	if err != nil {
		t.Fatal(err)
	}
	here, there := make([]byte, longBytes), make([]byte, longBytes)
	for i, want := range []int{2, 3, 4, 5, 7, 8} { // copies and their marks
		if _, err := q.Push(&Move{To: Side{Dev: gpu.PtrOf(there), Elsewhere: true}, From: Side{Dev: gpu.PtrOf(here)}, Bytes: longBytes, Token: uint64(i)}); err != nil {
			t.Fatal(err)
		}
		if q.Poll(); c.calls != want {
			t.Errorf("%d calls for %d copies, want %d", c.calls, i+1, want)
		}
	}
	c.run()
	if q.Poll(); !slices.Equal(ended, []uint64{0, 1, 2, 3, 4}) {
		t.Errorf("ended %v when the marks had come, want five", ended)
	}
	c.run()
	if q.Poll(); !slices.Equal(ended, []uint64{0, 1, 2, 3, 4, 5}) || !q.Idle() {
		t.Errorf("ended %v, want all six", ended)
	}
	long, word := Move{To: Side{Dev: gpu.PtrOf(there), Elsewhere: true}, From: Side{Dev: gpu.PtrOf(here)}, Bytes: longBytes}, uint64(0)
	for _, m := range []Move{long, {To: Side{Dev: gpu.Cast[byte](gpu.PtrTo(&word))}, From: Side{Host: make([]byte, 8)}, Bytes: 8}} {
		if _, err := q.Push(&m); err != nil {
			t.Fatal(err)
		}
		q.Poll()
	}
	c.run()
	if q.Poll(); !q.Idle() {
		t.Error("a short move behind a long one had no mark of its own")
	}
}
