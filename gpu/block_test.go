// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"runtime"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// TestRelease hands plain data over by release and acquire; under -race the detector agrees.
func TestRelease(t *testing.T) {
	var data [64]uint64
	var flag uint64
	p := PtrTo(&flag)
	var wg sync.WaitGroup
	const rounds = 2000
	wg.Go(func() {
		for i := range uint64(rounds) {
			for Load(p, Acquire, ScopeSys) != 2*i {
				runtime.Gosched()
			}
			for j := range data {
				data[j] = i + uint64(j)
			}
			Store(p, 2*i+1, Release, ScopeSys)
		}
	})
	for i := range uint64(rounds) {
		for Load(p, Acquire, ScopeSys) != 2*i+1 {
			runtime.Gosched()
		}
		for j, v := range data {
			if v != i+uint64(j) {
				t.Fatalf("round %d: word %d is %d", i, j, v)
			}
		}
		Store(p, 2*i+2, Release, ScopeSys)
	}
	wg.Wait()
}

// TestPtr compares addresses with plain indices.
func TestPtr(t *testing.T) {
	var none Ptr[uint64]
	if !none.IsNil() || none.Addr() != 0 || !PtrOf(nil).IsNil() {
		t.Error("the zero Ptr is not nil")
	}
	type rec struct {
		a uint32
		b uint64
		c byte
	}
	rs := make([]rec, 10)
	p := PtrTo(&rs[0])
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, 9).Draw(t, "element")
		rs[i] = rec{uint32(i), uint64(i) << 40, byte(i)}
		q := p.At(i)
		if q.Load() != rs[i] || q.Raw() != &rs[i] || q.IsNil() || q.At(-i) != p || p.Byte(uint64(i)*(q.Addr()-p.Addr())/uint64(max(i, 1))) != q {
			t.Fatalf("element %d", i)
		}
		q.Store(rec{7, 8, 9})
		if rs[i] != (rec{7, 8, 9}) {
			t.Fatalf("element %d was not stored", i)
		}
	})
	words := []uint32{0x11223344, 0x55667788}
	if got := Cast[byte](PtrTo(&words[0])).Byte(4).Load(); got != 0x88 {
		t.Errorf("byte 4 is %#x", got)
	}
	if s := Slice(PtrTo(&words[0]), 2); len(s) != 2 || &s[1] != &words[1] {
		t.Error("the slice is elsewhere")
	}
}

// TestKernel binds arguments, runs with them and forgets them.
func TestKernel(t *testing.T) {
	type args struct {
		a int
		p Ptr[uint64]
	}
	var sum int
	k := NewKernel("sum", func(_ Thread, a args) { sum += a.a }, "ptx text")
	if k.Name() != "sum" || k.PTX() != "ptx text" {
		t.Errorf("name %q, PTX %q", k.Name(), k.PTX())
	}
	one, two := k.Bind(args{a: 1}), k.Bind(args{a: 20})
	one.Run(Thread{})
	two.Run(Thread{})
	one.Run(Thread{})
	if sum != 22 || one.Name() != "sum" {
		t.Errorf("sum is %d", sum)
	}
	var word uint64
	c := k.Bind(args{p: PtrTo(&word)})
	c.Release()
	if b := c.(*bound[args]); !b.args.p.IsNil() {
		t.Error("arguments are kept after the launch")
	}
}

// TestCubin: a GPU runs machine code of its own major version, made for it or for one before it, the newest there is.
func TestCubin(t *testing.T) {
	code := NewKernel("k", func(Thread, struct{}) {}, "ptx", Cubin{90, "90"}, Cubin{80, "80"}, Cubin{86, "86"}, Cubin{103, "103"}).Code()
	for _, c := range []struct {
		major, minor int
		want         string
	}{
		{7, 5, ""}, {8, 0, "80"}, {8, 2, "80"}, {8, 6, "86"}, {8, 9, "86"}, {9, 0, "90"}, {10, 0, ""}, {10, 3, "103"}, {12, 0, ""},
	} {
		if got := code.Cubin(c.major, c.minor); got != c.want {
			t.Errorf("compute capability %d.%d runs %q (want %q)", c.major, c.minor, got, c.want)
		}
	}
}
