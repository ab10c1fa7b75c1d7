// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestCopy(t *testing.T) {
	src := make([]byte, 96<<10)
	for i := range src {
		src[i] = byte(i * 7 >> 3)
	}
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.IntRange(0, 4200).Draw(t, "from")
		to := rapid.IntRange(0, 4200).Draw(t, "to")
		n := rapid.SampledFrom([]int{0, 1, 63, 4096, 8191, 8192, 8193, 40000, 65536}).Draw(t, "bytes")
		m := max(0, n+rapid.SampledFrom([]int{-1, 0, 1}).Draw(t, "more room"))
		got, want := make([]byte, 80<<10), make([]byte, 80<<10)
		if g, w := Copy(got[to:to+m], src[from:from+n]), copy(want[to:to+m], src[from:from+n]); g != w || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes copied, want %d; equal: %v", g, w, bytes.Equal(got, want))
		}
	})
}

func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{4 << 10, 16 << 10, 256 << 10} {
		dst, src := make([]byte, 4<<20), make([]byte, 4<<20)
		for name, f := range map[string]func(dst, src []byte) int{"ours": Copy, "go": func(d, s []byte) int { return copy(d, s) }} {
			b.Run(fmt.Sprintf("%s-%dK", name, n>>10), func(b *testing.B) {
				b.SetBytes(4 << 20)
				for range b.N {
					for at := 0; at < len(dst); at += n {
						f(dst[at:at+n], src[at:at+n])
					}
				}
			})
		}
	}
}
