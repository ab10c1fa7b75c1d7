// SPDX-License-Identifier: Apache-2.0

// Package moetest has kernels that the tests of package moe launch beside its own, on each device.
package moetest

import (
	"math"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/num"
)

// ExpertsArgs are what a rank of the low-latency form has received.
type ExpertsArgs struct {
	Rows                     gpu.Ptr[byte]
	Counts                   gpu.Ptr[uint32]
	Outs                     gpu.Ptr[uint16]
	First                    int32 // number of the first local expert
	Locals, Cap, Hidden, Row int32
	Scales                   int32 // what stands behind a row's values
	Values                   int32 // bytes of those
	_                        int32
}

// Scales of ExpertsArgs.
const (
	None      = iota // values are BF16; else they are e4m3, and a group of them has a
	Floats           // float32
	Exponents        // byte that is its exponent
)

// Experts are those of the reference, so that a graph has them between dispatch and combine. One block runs it.
//
//gpu:kernel
func Experts(t gpu.Thread, a ExpertsArgs) {
	for l := range a.Locals {
		for i := range int32(a.Counts.At(int(l)).Load()) {
			at := l*a.Cap + i
			row := a.Rows.Byte(uint64(at) * uint64(a.Row))
			for j := t.Index(); j < a.Hidden; j += t.Threads() {
				a.Outs.At(int(at*a.Hidden + j)).Store(expert(a.First+l, j, a.element(row, j)))
			}
		}
	}
}

// expert is package moe/ref's ExpertFn.
func expert(e, j int32, v uint16) uint16 {
	factor, bias := 1+float32(e%16)/16, float32((e*37+j*11)%61-30)
	return num.F32ToBF16(gpu.Mul(num.BF16ToF32(v), factor) + bias)
}

// element is an element of a row, in BF16.
func (a *ExpertsArgs) element(row gpu.Ptr[byte], j int32) uint16 {
	const group = 128 // elements that share a scale
	scales, scale := row.Byte(uint64(a.Values)), float32(0)
	switch a.Scales {
	case None:
		return gpu.Cast[uint16](row).At(int(j)).Load()
	case Exponents:
		scale = math.Float32frombits(uint32(scales.Byte(uint64(j/group)).Load()) << 23)
	default:
		scale = gpu.Cast[float32](scales).At(int(j / group)).Load()
	}
	return num.F32ToBF16(gpu.Mul(num.E4M3ToF32(row.Byte(uint64(j)).Load()), scale))
}

// HTExpertsArgs are what a rank of the high-throughput form has received, in BF16.
type HTExpertsArgs struct {
	Rows                    gpu.Ptr[uint16]
	Weights                 gpu.Ptr[byte] // of the first row; those of the next stand InfoBytes behind
	Count                   gpu.Ptr[uint32]
	Outs                    gpu.Ptr[uint16]
	OutWeights              gpu.Ptr[float32]
	Rank, Hidden, TopK, Gap int32 // Gap: HTReceived.InfoBytes
}

// HTExperts makes of each row what the reference's expert of the rank's number does, and of each weight another one.
//
//gpu:kernel
func HTExperts(t gpu.Thread, a HTExpertsArgs) {
	for i := range int32(a.Count.Load()) {
		for j := t.Index(); j < a.Hidden; j += t.Threads() {
			at := int(i*a.Hidden + j)
			a.Outs.At(at).Store(expert(a.Rank, j, a.Rows.At(at).Load()))
		}
		for k := t.Index(); k < a.TopK; k += t.Threads() {
			w := gpu.Cast[float32](a.Weights.Byte(uint64(i * a.Gap))).At(int(k)).Load()
			a.OutWeights.At(int(i*a.TopK + k)).Store(gpu.Mul(w, 1.25) + float32(a.Rank)/3)
		}
	}
}
