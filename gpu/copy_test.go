// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/gpu"
)

// fresh is n bytes at a multiple of 4,096, after which places are counted.
func fresh(n int) []byte {
	b := make([]byte, n+4096)
	skip := int(-gpu.PtrOf(b).Addr() & 4095)
	return b[skip : skip+n : skip+n]
}

// TestCopies compares each copy with copy, at all alignments, with what stands around it.
func TestCopies(t *testing.T) {
	type copier func(th gpu.Thread, dst, src gpu.Ptr[byte], n uint64)
	copies := map[string]copier{
		"thread": func(_ gpu.Thread, dst, src gpu.Ptr[byte], n uint64) { gpu.CopyThread(dst, src, n) }, "warp": gpu.CopyWarp, "block": gpu.CopyBlock, "lanes": gpu.CopyLanesForTest,
	}
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(0, 70), rapid.IntRange(71, 9000), rapid.Just(4096), rapid.Just(0)).Draw(r, "bytes")
		to, from := rapid.IntRange(0, 80).Draw(r, "to"), rapid.IntRange(0, 80).Draw(r, "from")
		if rapid.Bool().Draw(r, "aligned") {
			to, from = to&^15, from&^15
		}
		count := rapid.Int32Range(1, 32).Draw(r, "warps")
		src, got := fresh(n+200), fresh(n+200)
		seed := rapid.Uint64().Draw(r, "seed")
		for i := range src {
			seed = seed*6364136223846793005 + 1442695040888963407
			src[i], got[i] = byte(seed>>56), 0xa5
		}
		want, kept := bytes.Clone(got), bytes.Clone(src)
		copy(want[to:to+n], src[from:from+n])
		for name, f := range copies {
			for i := range got {
				got[i] = 0xa5
			}
			w := int32(1)
			if name == "block" || name == "lanes" {
				w = count
			}
			warps(w, func(th gpu.Thread) {
				f(th, gpu.PtrOf(got).Byte(uint64(to)), gpu.PtrOf(src).Byte(uint64(from)), uint64(n))
			})
			if !bytes.Equal(got, want) || !bytes.Equal(src, kept) {
				r.Fatalf("%s copied %d bytes by %d warps wrongly, or touched others", name, n, w)
			}
		}
	})
	// Nothing is copied from nowhere to nowhere.
	warps(3, func(th gpu.Thread) {
		for _, f := range copies {
			f(th, gpu.Ptr[byte]{}, gpu.Ptr[byte]{}, 0)
		}
	})
}

func TestVectors(t *testing.T) {
	b := fresh(64)
	for i := range b {
		b[i] = byte(i)
	}
	p := gpu.Cast[gpu.U32x4](gpu.PtrOf(b))
	if v := gpu.LoadNC(p.At(1)); v != p.At(1).Load() || v != gpu.LoadEarly(p.At(1)) || v != (gpu.U32x4{0x13121110, 0x17161514, 0x1b1a1918, 0x1f1e1d1c}) {
		t.Errorf("16 bytes were loaded as %#x", v)
	}
	gpu.Cast[gpu.U32x2](p).At(7).Store(gpu.U32x2{1, 2})
	if !bytes.Equal(b[48:], []byte{48, 49, 50, 51, 52, 53, 54, 55, 1, 0, 0, 0, 2, 0, 0, 0}) {
		t.Errorf("8 bytes were stored as %v", b[48:])
	}
}

func TestPtr(t *testing.T) {
	var none gpu.Ptr[uint64]
	if !none.IsNil() || none.Addr() != 0 || none.Raw() != nil || !gpu.PtrOf(nil).IsNil() || !gpu.PtrTo[int](nil).IsNil() {
		t.Error("a zero Ptr is not nil")
	}
	type odd struct{ a, b, c uint32 }
	a := []odd{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}
	p := gpu.PtrTo(&a[0])
	if p.IsNil() || p.Raw() != &a[0] || p.At(2).Raw() != &a[2] || p.At(2).At(-1).Raw() != &a[1] || p.At(1).Load() != a[1] {
		t.Error("At does not count elements")
	}
	if p.At(2).Addr()-p.Addr() != 24 || p.Byte(12) != p.At(1) || p.Byte(0) != p {
		t.Error("Byte does not count bytes")
	}
	if q := gpu.Cast[uint32](p); q.At(4).Load() != 5 || q.Addr() != p.Addr() || gpu.Cast[odd](q) != p {
		t.Error("Cast changes the address")
	}
	p.At(1).Store(odd{10, 11, 12})
	if a[1] != (odd{10, 11, 12}) || a[0] != (odd{1, 2, 3}) || a[2] != (odd{7, 8, 9}) {
		t.Errorf("Store wrote %v", a)
	}
	s := gpu.Slice(p.At(1), 2)
	if len(s) != 2 || &s[0] != &a[1] || &s[1] != &a[2] || len(gpu.Slice(none, 0)) != 0 {
		t.Error("Slice is not the elements at the Ptr")
	}
	b := []byte{1, 2}
	if gpu.PtrOf(b).Byte(1).Raw() != &b[1] {
		t.Error("PtrOf is not the first byte")
	}
}
