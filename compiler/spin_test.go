// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"strings"
	"testing"
)

// TestLooksAreNotUnrolled: a loop that looks at memory again and again is there once, also where it is inlined, and one
// that does not is unrolled as before.
func TestLooksAreNotUnrolled(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	p, err := compileText(t, head+`
type A struct { P, Q gpu.Ptr[uint64]; N uint64; Out gpu.Ptr[uint64] }

func poll(p gpu.Ptr[uint64], want uint64) bool {
	for range 64 {
		if gpu.Load(p, gpu.Acquire, gpu.ScopeSys) >= want {
			return true
		}
	}
	return false
}

//gpu:kernel
func Polls(t gpu.Thread, a A) {
	if poll(a.P, a.N) || poll(a.Q, a.N) {
		a.Out.Store(1)
	}
}

//gpu:kernel
func Sums(t gpu.Thread, a A) {
	sum := uint64(0)
	for i := range 8 {
		sum += a.P.At(i).Load()
	}
	a.Out.Store(sum)
}
`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	polls := bodyOf(t, p, "Polls")
	if n := strings.Count(polls, "ld.acquire.sys"); n != 2 {
		t.Errorf("%d acquire loads of two inlined loops (want 2):\n%s", n, polls)
	}
	if n := strings.Count(polls, ".pragma \"nounroll\""); n < 2 {
		t.Errorf("the driver's compiler is asked %d times not to unroll (want once a loop)", n)
	}
	if sums := bodyOf(t, p, "Sums"); strings.Count(sums, "ld.global") < 4 || strings.Contains(sums, "nounroll") {
		t.Errorf("a loop of plain loads is not unrolled:\n%s", sums)
	}
}
