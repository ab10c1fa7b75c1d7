// SPDX-License-Identifier: Apache-2.0

package moe

import "github.com/doorbell-net/doorbell/gpu"

// Traffic is what was sent one way.
type Traffic struct {
	Messages uint64 // of tokens and of answers
	Bytes    uint64 // in them
	Signals  uint64
	_        uint64
}

const trafficBytes = 32

// note counts n messages of so many bytes, and the signal behind them: by stores to LSA rank p, by the network if p is -1.
func (a *LL) note(t gpu.Thread, p int32, n uint32, bytes uint64) {
	if a.Traffic.IsNil() || t.Lane() != 0 {
		return
	}
	way := 0
	if p < 0 {
		way = 1
	}
	c := a.Traffic.At(way).Raw()
	gpu.AtomicAdd(gpu.PtrTo(&c.Messages), uint64(n), gpu.Relaxed, gpu.ScopeGPU)
	gpu.AtomicAdd(gpu.PtrTo(&c.Bytes), uint64(n)*bytes, gpu.Relaxed, gpu.ScopeGPU)
	gpu.AtomicAdd(gpu.PtrTo(&c.Signals), 1, gpu.Relaxed, gpu.ScopeGPU)
}

// took counts rows that a local expert received.
func (a *LL) took(local int32, rows uint32) {
	if !a.Taken.IsNil() {
		gpu.AtomicAdd(a.Taken.At(int(local)), uint64(rows), gpu.Relaxed, gpu.ScopeGPU)
	}
}

// clock is when a wait begins, and waited that one for a rank has ended.
func (a *LL) clock(t gpu.Thread) uint64 {
	if a.Waited.IsNil() {
		return 0
	}
	return t.Clock()
}

func (a *LL) waited(t gpu.Thread, rank int32, since uint64) {
	if !a.Waited.IsNil() {
		gpu.AtomicAdd(a.Waited.At(int(rank)), t.Clock()-since, gpu.Relaxed, gpu.ScopeGPU)
	}
}
