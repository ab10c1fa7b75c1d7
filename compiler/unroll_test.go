// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

const unrolled = head + `
type A struct { Out, In gpu.Ptr[uint32]; N int32 }

//gpu:kernel
func Plain(t gpu.Thread, a A) {
	for i := range a.N {
		a.Out.At(int(i)).Store(a.In.At(int(i)).Load())
	}
}

//gpu:kernel
func Four(t gpu.Thread, a A) {
	//gpu:unroll 4
	for i := range a.N {
		a.Out.At(int(i)).Store(a.In.At(int(i)).Load())
	}
}

//gpu:kernel
func Never(t gpu.Thread, a A) {
	//gpu:unroll 1
	for i := range 8 {
		a.Out.At(i).Store(a.In.At(i).Load())
	}
}

//gpu:kernel
func Inner(t gpu.Thread, a A) {
	for i := int32(0); i < a.N; i++ {
		if i == 3 {
			continue
		}
		//gpu:unroll 2
		for j := i; j < a.N; j += 7 {
			v := a.In.At(int(j)).Load()
			if v == 5 {
				continue
			}
			a.Out.At(int(j)).Store(v + uint32(i))
		}
	}
}

func each(n int32, f func(int32)) {
	//gpu:unroll 3
	for i := range n {
		f(i)
	}
}

//gpu:kernel
func Closure(t gpu.Thread, a A) {
	each(a.N, func(i int32) {
		a.Out.At(int(i)).Store(a.In.At(int(i)).Load())
	})
}

//gpu:kernel
func Looks(t gpu.Thread, a A) {
	//gpu:unroll 2
	for range a.N {
		a.Out.Store(gpu.Load(a.In, gpu.Acquire, gpu.ScopeSys))
	}
}
`

// TestUnroll: a loop with a comment has as many rounds in one as it says, also where another loop is around it, where it
// is left early, and where it is of a function that is inlined; no other loop has.
func TestUnroll(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	p, err := compileText(t, unrolled, Options{})
	if err != nil {
		t.Fatal(err)
	}
	loads := regexp.MustCompile(`\tld\.(acquire\.sys\.)?global`)
	for name, want := range map[string]int{"Plain": 1, "Four": 5, "Never": 1, "Inner": 2, "Closure": 4, "Looks": 3} { // with the loop for the rest, but in Inner, which looks at the end between
		body := bodyOf(t, p, name)
		n := len(loads.FindAllString(body, -1))
		// What is left of four rounds is itself taken apart, or a loop.
		if n < want || n > want+2 || !loops(body) {
			t.Errorf("%s has %d loads (want %d), and loops: %v:\n%s", name, n, want, loops(body), body)
		}
	}
}

// TestRefusedUnrolls: a comment that does nothing is refused.
func TestRefusedUnrolls(t *testing.T) {
	text := head + `type A struct { Out gpu.Ptr[uint32]; N int32 }

//gpu:unroll 4
//gpu:kernel
func K(t gpu.Thread, a A) {
	//gpu:unroll 0
	for i := range a.N {
		a.Out.At(int(i)).Store(1)
	}
	//gpu:unroll
	for i := range a.N {
		a.Out.At(int(i)).Store(2)
	}
	//gpu:unroll 65
	for i := range a.N {
		a.Out.At(int(i)).Store(3)
	}
	//gpu:unroll 2

	for i := range a.N {
		a.Out.At(int(i)).Store(4)
	}
	//gpu:unroll 2
	for i := range a.N {
		a.Out.At(int(i)).Store(5)
		break
	}
}
`
	_, err := lower(t.Context(), foreign(t, map[string]string{"k/k.go": text}), []string{"./k"}, Options{Arch: DefaultArch})
	for part, want := range map[string]string{
		"//gpu:unroll 4\n":   "//gpu:unroll above no loop: it belongs in the line before for",
		"//gpu:unroll 0":     `//gpu:unroll "0": accepted are 1 to 64 rounds`,
		"//gpu:unroll\n":     `//gpu:unroll "": accepted are 1 to 64 rounds`,
		"//gpu:unroll 65":    `//gpu:unroll "65": accepted are 1 to 64 rounds`,
		"//gpu:unroll 2\n\n": "//gpu:unroll above no loop",
	} {
		line := strings.Count(text[:strings.Index(text, part)], "\n") + 1
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("k.go:%d:", line)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q in line %d: %v (want %s)", part, line, err, want)
		}
	}
	text = head + text[strings.Index(text, "type A"):strings.Index(text, "//gpu:unroll 4")] + "//gpu:kernel\nfunc K(t gpu.Thread, a A) {\n" + text[strings.LastIndex(text, "\t//gpu:unroll 2"):]
	_, err = lower(t.Context(), foreign(t, map[string]string{"k/k.go": text}), []string{"./k"}, Options{Arch: DefaultArch})
	if err == nil || !strings.Contains(err.Error(), "k.go:12:2: //gpu:unroll above what is no loop any more") {
		t.Errorf("%v (want that there is no loop)", err)
	}
}
