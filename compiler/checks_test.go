// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/abi"
)

const checked = head + `
type A struct {
	Out  gpu.Ptr[uint32]
	Wide gpu.Ptr[uint64]
	Vec  gpu.Ptr[gpu.U32x4]
	Link gpu.Ptr[*uint32]
	N, M int32
}

//gpu:kernel
func Index(t gpu.Thread, a A) {
	a.Out.Store(gpu.Slice(a.Out, 4)[a.N])
}

//gpu:kernel
func Bounds(t gpu.Thread, a A) {
	a.Out.Store(uint32(len(gpu.Slice(a.Out, 4)[a.N:a.M])))
}

//gpu:kernel
func Divide(t gpu.Thread, a A) {
	a.Out.Store(uint32(a.N / a.M))
}

//gpu:kernel
func Shift(t gpu.Thread, a A) {
	a.Out.Store(uint32(a.N << a.M))
}

//gpu:kernel
func Pointer(t gpu.Thread, a A) {
	a.Out.Store(*a.Link.Load())
}

//gpu:kernel
func Load(t gpu.Thread, a A) {
	a.Out.Store(uint32(a.Wide.Load()))
}

//gpu:kernel
func Store(t gpu.Thread, a A) {
	a.Vec.Store(gpu.U32x4{})
}

//gpu:kernel
func Cached(t gpu.Thread, a A) {
	a.Out.Store(gpu.LoadNC(a.Vec)[0])
}

//gpu:kernel
func Ordered(t gpu.Thread, a A) {
	gpu.Store(a.Wide, gpu.Load(a.Wide.At(2), gpu.Acquire, gpu.ScopeSys), gpu.Release, gpu.ScopeSys)
}

//gpu:kernel
func Atomic(t gpu.Thread, a A) {
	if gpu.AtomicCAS(a.Out, 1, 2, gpu.Relaxed, gpu.ScopeGPU) {
		a.N += int32(gpu.AtomicAdd(a.Out, 1, gpu.Relaxed, gpu.ScopeGPU) + gpu.AtomicExch(a.Out, 1, gpu.Relaxed, gpu.ScopeGPU))
		gpu.AtomicMax(a.Wide, uint64(a.N), gpu.Relaxed, gpu.ScopeGPU)
	}
}

//gpu:kernel
func Local(t gpu.Thread, a A) {
	v := [2]uint32{1, 2}
	p := &v
	p[0]++
	a.Out.Store(p[0] + add(p))
}

func add(p *[2]uint32) uint32 { return p[0] + p[1] }
`

// TestCheckedBuild: what a checked build looks at, with the line that it tells; an unchecked one has none of it.
func TestCheckedBuild(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	dir := foreign(t, map[string]string{"k/k.go": checked})
	of := func(opt Options) *Package {
		t.Helper()
		pkgs, err := Compile(t.Context(), dir, []string{"./k"}, opt)
		if err != nil {
			t.Fatal(err)
		}
		return pkgs[0]
	}
	p, plain := of(Options{Checks: true}), of(Options{})
	if a, err := FindAssembler(t.Context()); err == nil {
		if _, _, err := a.Assemble(t.Context(), p, 90); err != nil {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct {
		texts []string
		calls int // those of the store to Out among them
	}{
		"Index":   {[]string{"index out of range"}, 3},
		"Bounds":  {[]string{"slice bounds out of range"}, 3},
		"Divide":  {[]string{"integer divide by zero"}, 3},
		"Shift":   {[]string{"negative shift amount"}, 3},
		"Pointer": {[]string{"nil pointer dereference"}, 5},
		"Load":    {[]string{"nil gpu.Ptr", "gpu.Ptr that is no multiple of 8"}, 4},
		"Store":   {[]string{"gpu.Ptr that is no multiple of 16"}, 2},
		"Cached":  {[]string{"gpu.Ptr that is no multiple of 16"}, 4},
		"Ordered": {[]string{"gpu.Ptr that is no multiple of 8"}, 4},
		"Atomic":  {[]string{"gpu.Ptr that is no multiple of 4", "atomic on memory of the host"}, 8},
		"Local":   {nil, 2},
	} {
		body := bodyOf(t, p, name)
		for _, text := range c.texts {
			if !strings.Contains(p.PTX, bytesOf(text)) {
				t.Errorf("the PTX of the checked build has no text %q", text)
			}
		}
		if n := strings.Count(body, "__assertfail"); n != c.calls {
			t.Errorf("%s has %d checks (want %d):\n%s", name, n, c.calls, body)
		}
		line := lineOf(checked, "func "+name+"(") + 1
		if name == "Local" {
			line += 3
		}
		if !strings.Contains(body, fmt.Sprintf(", %d;", line)) {
			t.Errorf("%s does not tell line %d:\n%s", name, line, body)
		}
		if body := bodyOf(t, plain, name); strings.Contains(body, "__assertfail") || strings.Contains(body, "trap") {
			t.Errorf("%s is checked in a build without checks:\n%s", name, body)
		}
	}
	if !strings.Contains(p.PTX, ".global .align 8 .u64 "+abi.HostTable+";\n") || strings.Contains(plain.PTX, abi.HostTable) {
		t.Error("the checked build alone must have a place for the address of the host's memory")
	}
	if !strings.Contains(p.PTX, bytesOf("example.com/elsewhere/k/k.go")) {
		t.Error("the PTX does not name the source")
	}
}
