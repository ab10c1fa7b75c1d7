// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"bytes"
	"os"
	"syscall"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"pgregory.net/rapid"
)

// fenced is memory behind which a page lies that faults when it is read.
func fenced(t *testing.T) []byte {
	page := os.Getpagesize()
	mem, err := syscall.Mmap(-1, 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(mem) })
	if err := syscall.Mprotect(mem[page:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return mem[:page]
}

// unpack reads n bytes of a cell as its reader does: 7 in each word, lowest first, below the phase bit.
func unpack(cell []uint64, n int) (out []byte) {
	for i := range n {
		out = append(out, byte(cell[i/abi.CellWordPayload]>>(8*(i%abi.CellWordPayload))))
	}
	return out
}

// TestStoreCell packs payloads of every size and alignment. No byte past their end is read, no word past the last is
// written, each word that is has its phase bit, and reading them gives the payload.
func TestStoreCellModel(t *testing.T) {
	mem := fenced(t)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, abi.CellPayload).Draw(t, "size")
		off := len(mem) - n
		if rapid.Bool().Draw(t, "not at the end") {
			off -= rapid.IntRange(0, 63).Draw(t, "before it")
		}
		src := mem[off:][:n:n]
		copy(src, rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "payload"))
		phase := rapid.SampledFrom([]uint64{0, abi.PhaseBit}).Draw(t, "phase")
		old := rapid.Uint64().Draw(t, "old") // what the lap before has left
		cell := make([]uint64, abi.CellWords)
		for i := range cell {
			cell[i] = old
		}
		from := gpu.PtrOf(mem[:1]).Byte(uint64(off))
		storeCell(gpu.PtrTo(&cell[0]), from, uint64(n), phase)
		words := (n + abi.CellWordPayload - 1) / abi.CellWordPayload
		for i, w := range cell {
			if i < words && w&abi.PhaseBit != phase {
				t.Fatalf("%d bytes: word %d is %#x, its phase is wrong", n, i, w)
			}
			if i >= words && w != old {
				t.Fatalf("%d bytes: word %d of %d was written", n, i, words)
			}
		}
		if got := unpack(cell, n); !bytes.Equal(got, src) {
			t.Fatalf("%d bytes at %d: read back %x, want %x", n, off, got, src)
		}
	})
}

// TestLoadBytes reads numbers of 0 to 8 bytes at every alignment, up to the end of what may be read.
func TestLoadBytesModel(t *testing.T) {
	mem := fenced(t)
	for n := range 9 {
		for before := range 17 {
			off := len(mem) - n - before
			want := uint64(0)
			for i := range n {
				mem[off+i] = byte(37*i + 11*n + before + 129)
				want |= uint64(mem[off+i]) << (8 * i)
			}
			if got := loadBytes(gpu.PtrOf(mem[:1]).Byte(uint64(off)), uint64(n)); got != want {
				t.Errorf("%d bytes, %d before the end: %#x, want %#x", n, before, got, want)
			}
		}
	}
}

// TestLoadWords: by words or by bytes, what is read is the same, wherever it lies, and nothing beside it.
func TestLoadWords(t *testing.T) {
	words := make([]uint64, 3)
	p := gpu.Cast[byte](gpu.PtrTo(&words[0]))
	for i := range uint64(24) {
		p.Byte(i).Store(byte(0x81 + 7*i))
	}
	for off := range uint64(8) {
		for n := range uint64(9) {
			if got, want := loadWords(p.Byte(8+off), n), loadBytes(p.Byte(8+off), n); got != want {
				t.Errorf("%d bytes at offset %d: %#x, want %#x", n, off, got, want)
			}
		}
	}
}
