// SPDX-License-Identifier: Apache-2.0

//go:build !lockstep

// Kernels here are written for warps of one lane.

package gpu_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/gpu"
)

const (
	threads = 6
	rounds  = 500
)

// contend has threads use one word at once, in every way there is.
func contend[T gpu.Int](t *testing.T, name string, start T) {
	var added, swapped, held, highest = start, start, T(0), start
	var olds [threads][rounds]T
	var taken [threads]T
	plain := 0 // guarded by held
	warps(threads, func(th gpu.Thread) {
		w := th.Warp()
		for i := range rounds {
			olds[w][i] = gpu.AtomicAdd(gpu.PtrTo(&added), 1, gpu.AcqRel, gpu.ScopeGPU)
			// Values are neither lost nor doubled: what one puts in, one takes out.
			taken[w] += gpu.AtomicExch(gpu.PtrTo(&swapped), T(i), gpu.AcqRel, gpu.ScopeGPU)
			for !gpu.AtomicCAS(gpu.PtrTo(&held), 0, 1, gpu.Acquire, gpu.ScopeGPU) {
				th.Idle(0, 0)
			}
			plain++
			gpu.Store(gpu.PtrTo(&held), 0, gpu.Release, gpu.ScopeGPU)
			v := start + T(i)
			if old := gpu.AtomicMax(gpu.PtrTo(&highest), v, gpu.Relaxed, gpu.ScopeGPU); i > 0 && old < v-1 {
				t.Errorf("%s: the maximum was %v after this thread had put %v", name, old, v-1)
			}
		}
	})
	seen := map[T]bool{}
	for _, o := range olds {
		for i, v := range o {
			if seen[v] || i > 0 && v-start <= o[i-1]-start && v > o[i-1] {
				t.Fatalf("%s: %v was returned twice by an add, or out of order", name, v)
			}
			seen[v] = true
		}
	}
	if want := start + threads*rounds; added != want {
		t.Errorf("%s: the sum is %v, want %v", name, added, want)
	}
	var out, in T = swapped, start
	for w := range threads {
		out += taken[w]
		for i := range rounds {
			in += T(i)
		}
	}
	if out != in {
		t.Errorf("%s: exchanges took %v out and put %v in", name, out, in)
	}
	if plain != threads*rounds {
		t.Errorf("%s: a lock of compare-and-swap let %d of %d through", name, plain, threads*rounds)
	}
	if want := start + rounds - 1; highest != want {
		t.Errorf("%s: the maximum is %v, want %v", name, highest, want)
	}
}

type named uint32

func TestAtomics(t *testing.T) {
	contend[int32](t, "int32", -1000)
	contend[uint32](t, "uint32", 5)
	contend[int64](t, "int64", -1000)
	contend[uint64](t, "uint64", math.MaxUint32-100)
	contend[named](t, "named", 0)
}

// TestAtomicWrap adds across the ends of each width, and touches nothing beside the word.
func TestAtomicWrap(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		v, by := rapid.Uint64().Draw(r, "value"), rapid.Uint64().Draw(r, "by")
		a := [3]uint64{1, v, 2}
		b := [3]uint32{1, uint32(v), 2}
		old64 := gpu.AtomicAdd(gpu.PtrTo(&a[1]), by, gpu.Relaxed, gpu.ScopeSys)
		old32 := gpu.AtomicAdd(gpu.PtrTo(&b[1]), uint32(by), gpu.Relaxed, gpu.ScopeSys)
		if old64 != v || a != [3]uint64{1, v + by, 2} || old32 != uint32(v) || b != [3]uint32{1, uint32(v + by), 2} {
			r.Fatalf("%d + %d: %v, %v; old values %d, %d", v, by, a, b, old64, old32)
		}
		i, j := int64(v), int32(v)
		if gpu.AtomicAdd(gpu.PtrTo(&i), int64(by), gpu.Relaxed, gpu.ScopeSys) != int64(v) || i != int64(v+by) {
			r.Fatalf("%d + %d: %d", int64(v), int64(by), i)
		}
		if gpu.AtomicAdd(gpu.PtrTo(&j), int32(by), gpu.Relaxed, gpu.ScopeSys) != int32(v) || j != int32(v+by) {
			r.Fatalf("%d + %d: %d", int32(v), int32(by), j)
		}
		if max := gpu.AtomicMax(gpu.PtrTo(&a[1]), v, gpu.Relaxed, gpu.ScopeSys); max != v+by || a[1] != max && a[1] != v || a[1] < v {
			r.Fatalf("maximum of %d and %d: %d, was %d", v+by, v, a[1], max)
		}
		if gpu.AtomicCAS(gpu.PtrTo(&a[0]), 0, 9, gpu.Relaxed, gpu.ScopeSys) || a[0] != 1 {
			r.Fatal("a compare-and-swap swapped what it did not find")
		}
	})
}

// TestWords loads what was stored, bit by bit, for each kind of word.
func TestWords(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		bits := rapid.Uint64().Draw(r, "bits")
		var i32 [3]int32
		var u32 [3]uint32
		var f32 [3]float32
		var i64 [3]int64
		var u64 [3]uint64
		gpu.Store(gpu.PtrTo(&i32[1]), int32(bits), gpu.Relaxed, gpu.ScopeSys)
		gpu.Store(gpu.PtrTo(&u32[1]), uint32(bits), gpu.Release, gpu.ScopeSys)
		gpu.Store(gpu.PtrTo(&f32[1]), math.Float32frombits(uint32(bits)), gpu.Relaxed, gpu.ScopeSys)
		gpu.Store(gpu.PtrTo(&i64[1]), int64(bits), gpu.Release, gpu.ScopeSys)
		gpu.Store(gpu.PtrTo(&u64[1]), bits, gpu.Relaxed, gpu.ScopeSys)
		if i32 != [3]int32{0, int32(bits)} || u32 != [3]uint32{0, uint32(bits)} || i64 != [3]int64{0, int64(bits)} || u64 != [3]uint64{0, bits} ||
			math.Float32bits(f32[1]) != uint32(bits) || f32[0] != 0 || f32[2] != 0 {
			r.Fatalf("%#x was stored as %v, %v, %v, %v, %v", bits, i32, u32, f32, i64, u64)
		}
		if gpu.Load(gpu.PtrTo(&i32[1]), gpu.Acquire, gpu.ScopeSys) != int32(bits) || gpu.Load(gpu.PtrTo(&u64[1]), gpu.Relaxed, gpu.ScopeSys) != bits ||
			math.Float32bits(gpu.Load(gpu.PtrTo(&f32[1]), gpu.Acquire, gpu.ScopeSys)) != uint32(bits) {
			r.Fatalf("%#x was loaded as something else", bits)
		}
	})
}

// TestPublish passes plain bytes behind a released word, many times; under -race the order itself is checked.
func TestPublish(t *testing.T) {
	var payload [64]uint64
	var full, taken uint32
	const n = 500
	await := func(th gpu.Thread, p *uint32, want uint32) bool {
		for start := th.Clock(); gpu.Load(gpu.PtrTo(p), gpu.Acquire, gpu.ScopeGPU) != want; th.Idle(0, 0) {
			if th.Clock()-start > uint64(20*time.Second) {
				t.Errorf("word %d never came", want)
				return false
			}
		}
		return true
	}
	warps(2, func(th gpu.Thread) {
		for i := uint32(1); i <= n; i++ {
			if th.Warp() == 0 {
				for j := range payload {
					payload[j] = uint64(i)
				}
				gpu.Store(gpu.PtrTo(&full), i, gpu.Release, gpu.ScopeGPU)
				if !await(th, &taken, i) {
					return
				}
				continue
			}
			if !await(th, &full, i) {
				return
			}
			for j, v := range payload {
				if v != uint64(i) {
					t.Errorf("round %d: word %d is %d", i, j, v)
				}
			}
			gpu.Store(gpu.PtrTo(&taken), i, gpu.Release, gpu.ScopeGPU)
		}
	})
}
