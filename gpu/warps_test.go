// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
)

// env is a device of nothing but a clock.
type env struct{ start time.Time }

func (e env) Clock() uint64         { return uint64(time.Since(e.start)) }
func (env) Idle(int32, uint64) bool { runtime.Gosched(); return false }
func (env) Wake(word *uint32)       { *word = 0 }

// warps runs f in each thread of a block of n warps at once.
func warps(n int32, f func(gpu.Thread)) {
	b := &gpu.SoftBlock{Env: env{time.Now()}}
	b.Reset(0, 1, n)
	var wg sync.WaitGroup
	for i := range n * gpu.WarpSize {
		wg.Go(func() {
			defer b.Leave(i)
			f(b.Thread(i))
		})
	}
	wg.Wait()
}

// thread runs f in one thread.
func thread(f func(gpu.Thread)) {
	warps(1, func(th gpu.Thread) {
		if th.Lane() == 0 {
			f(th)
		}
	})
}

type args struct {
	out *[8]int
	at  int
	big [40]uint64
}

// TestBind: calls bound at the same time keep their arguments apart, a kernel that changes its own changes nobody
// else's, and a released call is bound anew.
func TestBind(t *testing.T) {
	if gpu.WarpSize > 1 {
		t.Skip("its kernel counts in plain words, for one lane")
	}
	k := gpu.NewKernel("Bound", func(_ gpu.Thread, a args) {
		for i, v := range a.big {
			if v != uint64(a.at*100+i) {
				a.out[7]++
			}
			a.big[i] = 0
		}
		a.out[a.at]++
		a.at = 7
	}, "some ptx")
	if k.Name() != "Bound" || k.PTX() != "some ptx" {
		t.Errorf("kernel is named %q with ptx %q", k.Name(), k.PTX())
	}
	var out [8]int
	bind := func(at int) gpu.Call {
		a := args{out: &out, at: at}
		for i := range a.big {
			a.big[i] = uint64(at*100 + i)
		}
		c := k.Bind(a)
		a.big[0] = 1 << 40
		return c
	}
	warps(1, func(th gpu.Thread) {
		for range 50 {
			calls := []gpu.Call{bind(0), bind(1), bind(2)}
			for _, i := range []int{2, 0, 1, 1} {
				calls[i].Run(th)
				if calls[i].Name() != "Bound" {
					t.Errorf("call is named %q", calls[i].Name())
				}
			}
			for _, c := range calls {
				c.Release()
			}
		}
	})
	if want := [8]int{50, 100, 50}; out != want {
		t.Errorf("runs by argument, and wrong words last: %v, want %v", out, want)
	}
}

// TestVariant: a launch takes the code of the first variant that its arguments fit, and the kernel's own else; the Go
// function is the same, and nothing is allocated.
func TestVariant(t *testing.T) {
	type args struct{ Hidden, TopK int32 }
	var ran []args
	k := gpu.NewKernel("K", func(_ gpu.Thread, a args) { ran = append(ran[:0], a) }, "its ptx", gpu.Cubin{Arch: 90, Code: "its cubin"}).
		Variant("K_7168_8", func(a *args) bool { return a.Hidden == 7168 && a.TopK == 8 }).
		Variant("K_7168", func(a *args) bool { return a.Hidden == 7168 }).
		Split("K_other", func(a *args) bool { return a.TopK < 0 })
	for _, c := range []struct {
		args
		want string
	}{{args{7168, 8}, "K_7168_8"}, {args{7168, 4}, "K_7168"}, {args{4096, 8}, "K"}, {args{4096, -1}, "K_other"}, {args{7168, 8}, "K_7168_8"}} {
		warps(1, func(th gpu.Thread) {
			b := k.Bind(c.args)
			b.Run(th)
			if b.Name() != c.want || b.Code().PTX != "its ptx" || b.Code().Cubin(9, 0) != "its cubin" || ran[0] != c.args {
				t.Errorf("%v: ran %s with %v (want %s)", c.args, b.Name(), ran, c.want)
			}
			b.Release()
		})
	}
	all := 0
	for _, c := range gpu.Codes() {
		if c == k.Code() || c == k.Code().Variants[0] || c == k.Code().Variants[1] {
			all++
		}
	}
	if all != 3 || len(k.Code().Variants) != 2 {
		t.Errorf("%d of 3 codes are there to be loaded, with %d variants", all, len(k.Code().Variants))
	}
}
