// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// A block's room for pieces that are on their way: nearly all of the 48 KiB that a block has without asking for more.
const (
	Stages     = 5
	StageBytes = 9216
)

type room struct {
	bytes [Stages][StageBytes]byte
	full  [Stages]gpu.Mbarrier
}

var rooms gpu.Shared[room]

// BulkCopyArgs of BulkCopyKernel.
type BulkCopyArgs struct {
	Send, Recv gin.Window
	Bytes      uint64          // a multiple of 16
	Timeout    uint64          // ns, of each wait
	Failed     gpu.Ptr[uint32] // raised by blocks whose wait ended at it
	Peer       int32           // of the LSA team
	_          int32
}

// BulkCopy copies the send window to an LSA peer's receive window by bulk copies, through shared memory. One thread of each
// block issues them; blocks take pieces of StageBytes in turn.
//
//gpu:arch sm_90
//gpu:kernel warps=1
func BulkCopy(t gpu.Thread, a BulkCopyArgs) {
	if t.Index() != 0 {
		return
	}
	r := rooms.Of(t)
	for s := range Stages {
		r.full[s].Init(t, 1)
	}
	first, step := uint64(t.Block())*StageBytes, uint64(t.Blocks())*StageBytes
	for k := range uint32(Stages) {
		a.in(t, r, k, first+uint64(k)*step)
	}
	to := gin.LSAPointer(a.Recv, a.Peer, 0)
	stage, last, parity := uint32(0), uint32(0), uint32(0) // counted, in 32 bits: a remainder takes a GPU a tenth of a turn
	for off := first; off < a.Bytes; off += step {
		if !a.filled(t, &r.full[stage], parity) {
			gpu.AtomicAdd(a.Failed, 1, gpu.Relaxed, gpu.ScopeGPU)
			return
		}
		// The copy before has had the time of that wait to read its piece: the stage is filled anew.
		if off != first {
			gpu.WaitBulkRead()
			a.in(t, r, last, off+(Stages-1)*step)
		}
		gpu.CopyBulkOut(t, to.Byte(off), gpu.PtrTo(&r.bytes[stage][0]), a.piece(off))
		gpu.CommitBulk()
		last = stage
		if stage++; stage == Stages {
			stage, parity = 0, parity^1
		}
	}
	gpu.WaitBulk()
}

// in fetches the piece at off, if there is one.
func (a *BulkCopyArgs) in(t gpu.Thread, r *room, stage uint32, off uint64) {
	if off < a.Bytes {
		n := a.piece(off)
		r.full[stage].ArriveExpect(t, n)
		gpu.CopyBulkIn(t, gpu.PtrTo(&r.bytes[stage][0]), a.Send.Base.Byte(off), n, &r.full[stage])
	}
}

func (a *BulkCopyArgs) piece(off uint64) uint32 { return uint32(min(a.Bytes-off, StageBytes)) }

// filled waits for the pieces of a stage.
func (a *BulkCopyArgs) filled(t gpu.Thread, b *gpu.Mbarrier, parity uint32) bool {
	if b.TryWait(t, parity) {
		return true
	}
	for start := t.Clock(); t.Clock()-start < a.Timeout; {
		if b.TryWait(t, parity) {
			return true
		}
	}
	return false
}
