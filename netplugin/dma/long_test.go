// SPDX-License-Identifier: Apache-2.0

package dma

import (
	"errors"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
)

// TestAhead: a long copy begins while what was queued before it is done, unless it reads what that writes, small copies used its
// room, or too much was written to tell.
func TestAhead(t *testing.T) {
	const n = 100
	c := new(byHand)
	g := NewGather(c, make([]byte, n))
	mem := make([]byte, 10*n)
	at := func(i int) gpu.Ptr[byte] { return gpu.PtrOf(mem).Byte(uint64(i * n)) }
	long := func(what string, to, from int, want bool) {
		t.Helper()
		before := c.ahead
		if err := g.Within(at(to), at(from), n); err != nil || (c.ahead > before) != want {
			t.Errorf("%s: ahead %v, want %v (%v)", what, c.ahead > before, want, err)
		}
	}
	long("the first", 1, 0, true)
	long("of other bytes", 3, 2, true)
	long("of what the first wrote", 4, 1, false)
	long("of what the one before that wrote, which it waited for", 5, 3, true)
	if err := g.Within(at(6), at(0), 10); err != nil {
		t.Error(err)
	}
	long("behind a small one", 7, 0, false)
	long("behind that", 8, 0, true)
	if err := g.Between(at(9), at(0), n); err != nil {
		t.Error(err)
	}
	long("of what came from another device", 1, 9, false)
	words := make([]uint64, gatherMost)
	for i := range words {
		for range 2 { // twice the same is once
			if err := errors.Join(g.Store(gpu.PtrTo(&words[i]), 1), g.Flush()); err != nil {
				t.Error(err)
			}
		}
		if i == gatherMost-2 {
			long("behind as many words as are told apart", 1, 0, true)
		}
	}
	long("behind more", 1, 0, false)
}
