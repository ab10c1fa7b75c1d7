// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"math/bits"

	"github.com/doorbell-net/doorbell/gpu"
)

// Coop names the threads that take part in a call.
type Coop struct {
	t    gpu.Thread
	kind int32
}

const (
	coopThread = iota
	coopLanes  // up to here each is alone
	coopWarp
	coopBlock
)

// ByThread is the calling thread alone.
func ByThread(t gpu.Thread) Coop { return Coop{t, coopThread} }

// ByWarp is the calling warp.
func ByWarp(t gpu.Thread) Coop { return Coop{t, coopWarp} }

// ByBlock is the calling block.
func ByBlock(t gpu.Thread) Coop { return Coop{t, coopBlock} }

// ByLanes is each lane of the calling warp for itself, and all of them together: each posts what is its own, to whichever peer,
// and has its own status. A NIC that kernels drive is then told once for all lanes that post to the same queue. Puts, gets and
// signals take it.
func ByLanes(t gpu.Thread) Coop { return Coop{t, coopLanes} }

// Thread is the calling thread.
func (co Coop) Thread() gpu.Thread { return co.t }

// begin gathers the threads and says whether this one issues. What all of them wrote is visible to it.
func (co Coop) begin() bool { return co.alone() || co.gather() }

// alone says whether the calling thread issues what is its own.
func (co Coop) alone() bool { return co.kind <= coopLanes }

func (co Coop) gather() bool {
	if co.kind == coopWarp {
		co.t.SyncWarp()
		return co.t.Lane() == 0
	}
	co.t.SyncBlock()
	return co.t.Index() == 0
}

// lanes is which of how many threads the calling one is where each has a part: one alone, or a warp's lanes, of a block the
// first warp's. The block's other threads are past them.
func (co Coop) lanes() (lane, of int32) {
	switch co.kind {
	case coopWarp:
		return co.t.Lane(), gpu.WarpSize
	case coopBlock:
		return co.t.Index(), gpu.WarpSize
	}
	return 0, 1
}

// index is which of how many threads the calling one is.
func (co Coop) index() (i, of uint64) {
	switch co.kind {
	case coopWarp:
		return uint64(co.t.Lane()), gpu.WarpSize
	case coopBlock:
		return uint64(co.t.Index()), uint64(co.t.Threads())
	}
	return 0, 1
}

// agree is OK when each of the lanes has it, else what the first that has not says. What each saw, all see.
func (co Coop) agree(s Status) Status {
	if co.alone() {
		return s
	}
	co.t.SyncWarp()
	if bad := gpu.Ballot(co.t, s != OK); bad != 0 {
		s = Status(gpu.ShflIdx(co.t, uint32(s), int32(bits.TrailingZeros32(bad))))
	}
	return s
}

// end gives the issuing thread's status to all, and what it saw before.
func (co Coop) end(s Status) Status {
	if co.alone() {
		return s
	}
	return co.spread(s)
}

func (co Coop) spread(s Status) Status {
	if co.kind == coopWarp {
		s = Status(gpu.ShflIdx(co.t, uint32(s), 0))
		co.t.SyncWarp()
		return s
	}
	p := shared.Of(co.t)
	if co.t.Index() == 0 {
		*p = s
	}
	co.t.SyncBlock()
	return *p
}

// gathered lets all threads go on when each has seen what begin gave it to see.
func (co Coop) gathered() {
	switch co.kind {
	case coopWarp:
		co.t.SyncWarp()
	case coopBlock:
		co.t.SyncBlock()
	}
}

// share gives the issuing thread's number to all. It stands between an end and the next begin.
func (co Coop) share(v uint64) uint64 {
	switch co.kind {
	case coopWarp:
		low := gpu.ShflIdx(co.t, uint32(v), 0)
		return uint64(gpu.ShflIdx(co.t, uint32(v>>32), 0))<<32 | uint64(low)
	case coopBlock:
		p := sharedWord.Of(co.t)
		if co.t.Index() == 0 {
			*p = v
		}
		co.t.SyncBlock()
		v = *p
		co.t.SyncBlock()
	}
	return v
}

// sharedWord is share's.
var sharedWord gpu.Shared[uint64]

// shared carries a status to the threads of a block. The next call's begin comes between its reads and its next write.
var shared gpu.Shared[Status]
