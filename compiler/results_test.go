// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"regexp"
	"testing"
)

// TestResults: what comes of a call with several returns is apart after optimisation, and none of it stays in memory.
func TestResults(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	dir := foreign(t, map[string]string{"k/k.go": head + `
type pair struct{ A, B uint64 }

func both(x uint64, p gpu.Ptr[uint64]) (uint64, bool) {
	if x > 7 {
		return 0, false
	}
	gpu.Store(p, x, gpu.Relaxed, gpu.ScopeSys)
	return x + 1, true
}

func one(x uint64, p gpu.Ptr[uint64]) pair {
	if x > 9 {
		return pair{}
	}
	gpu.Store(p, x, gpu.Relaxed, gpu.ScopeSys)
	return pair{x, x + 2}
}

//gpu:kernel
func K(t gpu.Thread, a struct{ P gpu.Ptr[uint64]; X, N uint64 }) {
	for range a.N {
		v, ok := both(a.X, a.P)
		if ok {
			a.P.At(1).Store(v)
		}
		q := one(a.X, a.P)
		a.P.At(2).Store(q.A ^ q.B)
	}
}
`})
	texts, err := lower(t.Context(), dir, []string{"./k"}, Options{Arch: DefaultArch})
	if err != nil {
		t.Fatal(err)
	}
	tools, err := findTools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	best, err := run(t.Context(), texts[0].text, tools.opt, "-O3", "-S", "-o", "-", "-")
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`phi [{\[].*|.*alloca.*`).FindString(best); m != "" {
		t.Errorf("there is %s in\n%s", m, best)
	}
}
