// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

const hints = head + `
type A struct { V gpu.Ptr[gpu.U32x4]; Out gpu.Ptr[uint32]; N int32; Wide int64 }

//gpu:kernel
func Once(t gpu.Thread, a A) {
	gpu.Prefetch(gpu.Cast[byte](a.V.At(1)))
	gpu.StoreOnce(a.V, gpu.LoadOnce(a.V.At(1)))
}

//gpu:kernel
func Early(t gpu.Thread, a A) {
	v := gpu.LoadEarly(a.V)
	if gpu.Load(a.Out, gpu.Relaxed, gpu.ScopeSys) != 0 {
		a.V.At(1).Store(v)
	}
}

//gpu:kernel
func Votes(t gpu.Thread, a A) {
	m := gpu.Match(t, a.N) + gpu.Match(t, a.Wide+int64(t.Lane()))
	if gpu.Elect(t) {
		a.Out.Store(m)
	}
}

//gpu:kernel
func Meet(t gpu.Thread, a A) {
	t.SyncWarps(3, 2)
	t.SyncWarps(a.N, t.Warps())
	if t.AnyOfBlock(a.N > t.Index()) {
		a.Out.Store(1)
	}
}
`

const tiles = `
type tile struct { B gpu.Mbarrier; Data [32]gpu.U32x4 }

var shared gpu.Shared[tile]

//gpu:kernel
func Tiles(t gpu.Thread, a A) {
	s := shared.Of(t)
	data := gpu.Cast[byte](gpu.PtrTo(&s.Data))
	if t.Index() == 0 {
		s.B.Init(t, 1)
	}
	t.SyncBlock()
	for i := range uint32(a.N) {
		if t.Index() == 0 {
			s.B.ArriveExpect(t, 512)
			gpu.CopyBulkIn(t, data, gpu.Cast[byte](a.V.At(int(32*i))), 512, &s.B)
		}
		for !s.B.TryWait(t, i) {
		}
		s.Data[t.Lane()][0]++
		gpu.FenceBulk()
		t.SyncBlock()
		if t.Index() == 0 {
			gpu.CopyBulkOut(t, gpu.Cast[byte](a.V.At(int(32*i))), data, 512)
			gpu.CommitBulk()
			gpu.WaitBulkRead()
		}
		t.SyncBlock()
	}
	if t.Index() == 0 {
		gpu.WaitBulk()
		s.B.Arrive(t)
	}
}
`

// TestHints: what is newer than the package's GPU is done in an older way, or refused; ptxas takes all of it.
func TestHints(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	for _, c := range []struct {
		arch, more string
		want       map[string][]string
	}{
		{"sm_70", "", map[string][]string{
			"Once":  {`prefetch\.global\.L2 \[%rd\d+\]`, `ld\.global\.cs\.nc\.v4\.u32 `, `st\.global\.cs\.v4\.u32 `},
			"Early": {`(?s)ld\.relaxed\.cta\.global\.v4\.u32 .*ld\.relaxed\.sys\.`},
			"Votes": {`match\.any\.sync\.b32 `, `match\.any\.sync\.b64 `, `%tid\.x`},
			"Meet":  {`bar\.sync %r\d+, %r\d+`, `, 64;`, `bar\.red\.or\.pred q, 0, p;`},
		}},
		{"sm_90", "//gpu:arch sm_90\n" + tiles, map[string][]string{
			"Once":  {`ld\.global\.nc\.L1::no_allocate\.v4\.u32 `, `st\.global\.L1::no_allocate\.v4\.u32 `},
			"Votes": {`elect\.sync _\|p, 0xffffffff`},
			"Tiles": {
				`mbarrier\.init\.shared\.b64 \[%rd\d+\], %r\d+; fence\.proxy\.async\.shared::cta`,
				`mbarrier\.arrive\.expect_tx\.release\.cta\.shared::cta\.b64 s, \[%rd\d+\], %r\d+`,
				`cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes \[%rd\d+\], \[%rd\d+\], %r\d+, \[%rd\d+\]`,
				`(?s)(\$L\w+):.*mbarrier\.try_wait\.parity\.acquire\.cta\.shared::cta\.b64 p, \[%rd\d+\], %r\d+`,
				`(?s)fence\.proxy\.async\.shared::cta;.*bar\.sync 0.*cp\.async\.bulk\.global\.shared::cta\.bulk_group \[%rd\d+\], \[%rd\d+\], %r\d+.*` +
					`cp\.async\.bulk\.commit_group;.*cp\.async\.bulk\.wait_group\.read 0;.*cp\.async\.bulk\.wait_group 0;`,
				`mbarrier\.arrive\.release\.cta\.shared::cta\.b64 s, \[%rd\d+\]`,
			},
		}},
	} {
		for _, opt := range []Options{{}, {Checks: true}} {
			if opt.Checks && c.more == "" {
				continue
			}
			p, err := compileText(t, hints+c.more, opt)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprintf("sm_%d", p.Arch) != c.arch || !strings.Contains(p.PTX, ".target "+c.arch+"\n") {
				t.Errorf("the PTX is not for %s", c.arch)
			}
			for kernel, want := range c.want {
				for _, w := range want {
					if body := bodyOf(t, p, kernel); !opt.Checks && !regexp.MustCompile(w).MatchString(body) {
						t.Errorf("%s: %s has no %s:\n%s", c.arch, kernel, w, body)
					}
				}
			}
			a, err := FindAssembler(t.Context())
			if err != nil {
				continue
			}
			for _, arch := range CubinArchs {
				if arch < p.Arch || opt.Checks && arch != 90 {
					continue
				}
				if _, _, err := a.Assemble(t.Context(), p, arch); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestNewer: what an old GPU lacks is refused with what to write, and an architecture that there is none of too.
func TestNewer(t *testing.T) {
	t.Parallel()
	text := hints + tiles
	_, err := lower(t.Context(), foreign(t, map[string]string{"k/k.go": text}), []string{"./k"}, Options{Arch: DefaultArch})
	for _, name := range []string{"Mbarrier.Init", "Mbarrier.ArriveExpect", "CopyBulkIn", "Mbarrier.TryWait", "FenceBulk", "CopyBulkOut", "CommitBulk", "WaitBulkRead", "WaitBulk", "Mbarrier.Arrive"} {
		if want := "gpu." + name + " needs sm_90, and the package is compiled for sm_70: write //gpu:arch sm_90 in it"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v (want %s)", err, want)
		}
	}
	_, err = lower(t.Context(), foreign(t, map[string]string{"k/k.go": text + "//gpu:arch sm_60\n"}), []string{"./k"}, Options{Arch: DefaultArch})
	if err == nil || !strings.Contains(err.Error(), `architecture "sm_60": accepted are sm_70`) {
		t.Errorf("%v (want which are accepted)", err)
	}
}
