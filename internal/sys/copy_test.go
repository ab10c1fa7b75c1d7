// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

// CopyPastCaches is copy, from and to any address, and touches nothing beside it.
func TestCopyPastCaches(t *testing.T) {
	rnd := testenv.Random(t)
	const room, canary = 3000, 0xa5
	src, dst := make([]byte, room), make([]byte, room)
	for i := range src {
		src[i] = byte(rnd.Uint32())
	}
	for range 3000 {
		n := rnd.IntN(room - 128)
		from, to := rnd.IntN(128), rnd.IntN(128)
		for i := range dst {
			dst[i] = canary
		}
		CopyPastCaches(dst[to:to+n], src[from:from+n+rnd.IntN(room-from-n)])
		if !bytes.Equal(dst[to:to+n], src[from:from+n]) || len(bytes.Trim(dst[:to], "\xa5")) > 0 || len(bytes.Trim(dst[to+n:], "\xa5")) > 0 {
			t.Fatalf("%d bytes from %d to %d: wrong ones, or more than these", n, from, to)
		}
	}
}

// BenchmarkCopyPastCaches copies rows to places in no order, beside copy.
func BenchmarkCopyPastCaches(b *testing.B) {
	const row = 14336
	for _, c := range []struct {
		name string
		copy func(dst, src []byte)
	}{{"copy", func(dst, src []byte) { copy(dst, src) }}, {"past", CopyPastCaches}} {
		for _, rows := range []int{32, 512, 4096} {
			b.Run(fmt.Sprintf("%s/%d", c.name, rows), func(b *testing.B) {
				src, dst, order := make([]byte, rows*row), make([]byte, rows*row), rand.Perm(rows)
				b.SetBytes(row)
				for i := range b.N {
					to := order[i%rows] * row
					c.copy(dst[to:to+row], src[i%rows*row:][:row])
				}
			})
		}
	}
}
