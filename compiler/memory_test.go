// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"regexp"
	"strings"
	"testing"
)

const vectors = head + `
type A struct { To, From gpu.Ptr[byte]; N uint64 }

//gpu:kernel
func Copy(t gpu.Thread, a A) { gpu.CopyBlock(t, a.To, a.From, a.N) }
`

// TestVectors: vectors that wait in variables, some of them loaded on a condition, are loaded and stored at once.
func TestVectors(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	p, err := compileText(t, vectors, Options{})
	if err != nil {
		t.Fatal(err)
	}
	body := bodyOf(t, p, "Copy")
	for _, w := range []string{"ld", "st"} {
		if n := strings.Count(body, w+".global.v4.u32"); n != 8+8+1 {
			t.Errorf("%d of %s.global.v4.u32, want 17", n, w)
		}
		if part := regexp.MustCompile(w + `\.global\.(v2\.)?u(32|64)`).FindString(body); part != "" {
			t.Errorf("%s of what is a part of a vector", part)
		}
	}
}
