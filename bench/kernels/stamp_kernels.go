// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Stamp is a time that a stream came to, by the device's clock.
type Stamp struct {
	Ns     uint64
	Status gin.Status
	_      uint32
}

// StampArgs of StampKernel.
type StampArgs struct {
	DC       gin.DevComm
	At       gpu.Ptr[Stamp]
	Together int32 // 1: all ranks wait for each other first, in barrier 0 of context 0
	_        int32
}

// StampTime notes when it runs, between what is to be timed.
//
//gpu:kernel warps=1
func StampTime(t gpu.Thread, a StampArgs) {
	s := gin.OK
	if a.Together != 0 {
		c := gin.Open(&a.DC, 0)
		s = c.HybridBarrier(gin.ByWarp(t), 0, gin.FenceNone)
	}
	if t.Lane() == 0 {
		a.At.Store(Stamp{Ns: t.Clock(), Status: s})
	}
}
