// SPDX-License-Identifier: Apache-2.0

package dma

import (
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
	items []func()
	mem   []uint64
}

func (c *byHand) Copy(dst, src gpu.Ptr[byte], n int) error {
	c.items = append(c.items, func() { copy(gpu.Slice(dst, n), gpu.Slice(src, n)) })
	return nil
}

func (c *byHand) Store(at gpu.Ptr[uint64], v uint64) error {
	c.items = append(c.items, func() { gpu.Store(at, v, gpu.Release, gpu.ScopeSys) })
	return nil
}

func (c *byHand) StoreBoth(gpu.Ptr[uint64], uint64, gpu.Ptr[uint64], uint64) error { return nil }
func (c *byHand) Close() error                                                     { return nil }
func (c *byHand) Pinned(n int) ([]byte, func() error, error) {
	c.mem = make([]uint64, n/8)
	return gpu.Slice(gpu.Cast[byte](gpu.PtrTo(&c.mem[0])), n), func() error { return nil }, nil
}

func (c *byHand) run() {
	for _, f := range c.items {
		f()
	}
	c.items = c.items[:0]
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
