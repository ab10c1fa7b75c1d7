// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// CopyArgs of CopyKernel.
type CopyArgs struct {
	DC         gin.DevComm
	Send, Recv gin.Window
	Bytes      uint64
	Refused    gpu.Ptr[uint32] // raised by the blocks whose call was
	Peer       int32           // of the LSA team
}

// Copy copies the send window to an LSA peer's receive window by stores, each block a share of whole pages.
//
//gpu:kernel
func Copy(t gpu.Thread, a CopyArgs) {
	c := gin.Open(&a.DC, 0)
	blocks := uint64(t.Blocks())
	share := ((a.Bytes+blocks-1)/blocks + 4095) &^ 4095
	from := min(uint64(t.Block())*share, a.Bytes)
	s := c.LSAPut(gin.ByBlock(t), a.Peer, a.Recv, from, a.Send.Base.Byte(from), min(share, a.Bytes-from))
	if s != gin.OK && t.Index() == 0 {
		gpu.AtomicAdd(a.Refused, 1, gpu.Relaxed, gpu.ScopeGPU)
	}
}
