// SPDX-License-Identifier: Apache-2.0

package dma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// TestGatherInOrder: copies and stores that overlap at random leave what they leave one after another, though the device does
// those of a batch the other way round.
func TestGatherInOrder(t *testing.T) {
	r := testenv.Random(t)
	const device, all = 600, 800 // bytes of the device, and with the host's behind them
	for range 200 {
		c, room := new(byHand), make([]byte, 128)
		g := NewGather(c, room)
		words, want := make([]uint64, all/8), make([]byte, all)
		mem := gpu.Cast[byte](gpu.PtrTo(&words[0]))
		for i := range want {
			want[i] = byte(r.Uint32())
			mem.Byte(uint64(i)).Store(want[i])
		}
		for range 80 {
			kind, n := r.IntN(4), 1+r.IntN(40)
			if kind == 0 {
				n = 1 + r.IntN(250) // through the room in pieces
			}
			near, far := r.IntN(device-n), r.IntN(device-n)
			var err error
			switch kind {
			case 0, 1:
				if near < far+n && far < near+n {
					continue // a copy onto itself
				}
				err = g.Within(mem.Byte(uint64(far)), mem.Byte(uint64(near)), n)
			case 2:
				if far = device + r.IntN(all-device-n); r.IntN(2) == 0 {
					near, far = far, near
				}
				err = g.Copy(mem.Byte(uint64(far)), mem.Byte(uint64(near)), n)
			case 3:
				at, v := r.IntN(len(words)), r.Uint64()
				err = g.Store(gpu.PtrTo(&words[at]), v)
				binary.NativeEndian.PutUint64(want[8*at:], v)
			}
			if kind < 3 {
				copy(want[far:far+n], want[near:near+n])
			}
			if r.IntN(50) == 0 {
				err = errors.Join(err, g.Flush())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := g.Flush(); err != nil {
			t.Fatal(err)
		}
		if c.run(); !bytes.Equal(gpu.Slice(mem, all), want) {
			t.Fatalf("memory is\n%x, want\n%x", gpu.Slice(mem, all), want)
		}
	}
}

// TestGatherAtOnce: many small copies and their stores are few calls, and the first error stays.
func TestGatherAtOnce(t *testing.T) {
	const rows, bytes = 8, 1000
	c := new(byHand)
	g := NewGather(c, make([]byte, rows*1024))
	from, to, words := make([]byte, rows*bytes), make([]byte, rows*bytes), make([]uint64, rows)
	for i := range rows {
		at := uint64(i * bytes)
		if err := errors.Join(g.Within(gpu.PtrOf(to).Byte(at), gpu.PtrOf(from).Byte(at), bytes), g.Store(gpu.PtrTo(&words[i]), 1)); err != nil {
			t.Fatal(err)
		}
	}
	if c.calls != 0 {
		t.Errorf("%d calls before anything is flushed", c.calls)
	}
	if err := g.Flush(); err != nil || c.calls != 2+rows/2 {
		t.Errorf("%d calls for %d rows and as many stores, want %d (%v)", c.calls, rows, 2+rows/2, err)
	}
	// To one place and by one word, as a sender does that says each time how far it is: what comes out does so at once, what goes
	// in one after another, and the word is stored once.
	c.run()
	c.calls = 0
	for i := range rows {
		at := uint64(i * bytes)
		from[at] = byte(i)
		if err := errors.Join(g.Within(gpu.PtrOf(to), gpu.PtrOf(from).Byte(at), bytes), g.Store(gpu.PtrTo(&words[0]), uint64(2+i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Flush(); err != nil || c.calls != 1+rows+1 {
		t.Errorf("%d calls for %d rows to one place, want %d (%v)", c.calls, rows, 1+rows+1, err)
	}
	if c.run(); to[0] != rows-1 || words[0] != 1+rows {
		t.Errorf("the place holds row %d of %d, the word %d", to[0], rows, words[0])
	}
	c.broken = errors.New("the device is gone")
	if err := g.Copy(gpu.PtrOf(to), gpu.PtrOf(from), bytes); err != nil {
		t.Errorf("a copy that is gathered: %v", err)
	}
	if err := g.Flush(); !errors.Is(err, c.broken) {
		t.Errorf("the device's error is %v", err)
	}
	gone := c.broken
	c.broken = nil
	if err := g.Store(gpu.PtrTo(&words[0]), 2); !errors.Is(err, gone) || !errors.Is(g.Flush(), gone) {
		t.Errorf("after an error: %v", err)
	}
}
