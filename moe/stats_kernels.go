// SPDX-License-Identifier: Apache-2.0

package moe

import "github.com/doorbell-net/doorbell/gpu"

// Traffic is what was sent one way.
type Traffic struct {
	Messages uint64 // of tokens and of answers; of the high-throughput form rows, messages between nodes, and layouts
	Bytes    uint64 // in them
	Signals  uint64
	_        uint64
}

const trafficBytes = 32

// Meter is where kernels count, all nil while nobody wants to know.
type Meter struct {
	Waited  gpu.Ptr[uint64]  // [rank] ns that waits for it took
	Taken   gpu.Ptr[uint64]  // [local] rows received
	Traffic gpu.Ptr[Traffic] // [2] what was sent by stores, and by the network
}

func (m *Meter) on() bool { return !m.Waited.IsNil() }

// note counts n messages of so many bytes, and signals: by stores to a rank that is near, else by the network. The first lane of a
// warp does it.
func (m *Meter) note(t gpu.Thread, near bool, n uint32, bytes uint64, signals uint32) {
	if t.Lane() == 0 {
		m.add(near, n, bytes, signals)
	}
}

// add is note by any thread.
func (m *Meter) add(near bool, n uint32, bytes uint64, signals uint32) {
	if !m.on() {
		return
	}
	way := 0
	if !near {
		way = 1
	}
	c := m.Traffic.At(way).Raw()
	gpu.AtomicAdd(gpu.PtrTo(&c.Messages), uint64(n), gpu.Relaxed, gpu.ScopeGPU)
	gpu.AtomicAdd(gpu.PtrTo(&c.Bytes), uint64(n)*bytes, gpu.Relaxed, gpu.ScopeGPU)
	gpu.AtomicAdd(gpu.PtrTo(&c.Signals), uint64(signals), gpu.Relaxed, gpu.ScopeGPU)
}

// took counts rows that a local expert received.
func (m *Meter) took(local int32, rows uint32) {
	if m.on() {
		gpu.AtomicAdd(m.Taken.At(int(local)), uint64(rows), gpu.Relaxed, gpu.ScopeGPU)
	}
}

// clock is when a wait begins, and waited that one for a rank has ended.
func (m *Meter) clock(t gpu.Thread) uint64 {
	if !m.on() {
		return 0
	}
	return t.Clock()
}

func (m *Meter) waited(t gpu.Thread, rank int32, since uint64) {
	if m.on() {
		gpu.AtomicAdd(m.Waited.At(int(rank)), t.Clock()-since, gpu.Relaxed, gpu.ScopeGPU)
	}
}
