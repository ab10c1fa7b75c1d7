// SPDX-License-Identifier: Apache-2.0

package gpu

import "sync/atomic"

// Mbarrier is a barrier in a block's shared memory that threads arrive at without waiting, and that bulk copies arrive at
// with their bytes (PTX ISA, "mbarrier"). It counts phases: one is complete when as many threads have arrived as Init was
// told, and all bytes that were announced for it have come; then the next one runs. It is part of what a gpu.Shared holds.
// Its package needs //gpu:arch sm_90.
//
// What a thread wrote before it arrived is visible to a thread whose TryWait saw that phase complete, and so are the bytes
// of bulk copies. All methods may be called at once, but for Init.
type Mbarrier struct{ state uint64 }

// phase is an Mbarrier on the CPU, in one word: the parity of the phase that runs, arrivals that it lacks of how many, and
// bytes that it lacks, which may be below zero until they are announced.
type phase struct {
	parity        uint32 // 1 bit
	missing, full uint32 // 20 bits each
	bytes         int32  // 21 bits and the sign
}

const (
	maxArrivals = 1<<20 - 1 // PTX ISA
	maxPending  = 1<<20 - 1 // bytes
)

func (p phase) word() uint64 {
	return uint64(p.parity) | uint64(p.missing)<<1 | uint64(p.full)<<21 | uint64(uint32(p.bytes))<<41
}

func phaseOf(w uint64) phase {
	return phase{uint32(w & 1), uint32(w >> 1 & maxArrivals), uint32(w >> 21 & maxArrivals), int32(uint32(w>>41)<<9) >> 9}
}

// Init begins phase 0, for so many arrivals a phase, 1 to 1,048,575. One thread calls it; the others use the barrier after
// a SyncBlock.
func (b *Mbarrier) Init(_ Thread, arrivals uint32) {
	if arrivals < 1 || arrivals > maxArrivals {
		panic("gpu: Mbarrier.Init: accepted are 1 to 1048575 arrivals")
	}
	atomic.StoreUint64(&b.state, phase{missing: arrivals, full: arrivals}.word())
}

// Arrive is one arrival.
func (b *Mbarrier) Arrive(_ Thread) { b.change(1, 0) }

// ArriveExpect is one arrival, and announces bytes of bulk copies for the phase, which is not complete before they came.
func (b *Mbarrier) ArriveExpect(_ Thread, bytes uint32) { b.change(1, int64(bytes)) }

// TryWait says whether the phase of that parity is complete: 0 for the first, 1 for the second, and so on by turns. It is
// asked for the phase that runs or the one before. On a GPU it may wait for a moment itself.
func (b *Mbarrier) TryWait(_ Thread, parity uint32) bool {
	return phaseOf(atomic.LoadUint64(&b.state)).parity != parity&1
}

// change takes arrivals and bytes into the phase, and ends it when it lacks nothing.
func (b *Mbarrier) change(arrivals uint32, bytes int64) {
	for {
		old := atomic.LoadUint64(&b.state)
		p := phaseOf(old)
		pending := int64(p.bytes) + bytes
		if p.missing < arrivals || pending > maxPending || pending < -maxPending {
			panic("gpu: Mbarrier: more arrivals than Init was told, or more than 1048575 bytes in a phase")
		}
		p.missing -= arrivals
		p.bytes = int32(pending)
		if p.missing == 0 && p.bytes == 0 {
			p.parity, p.missing = p.parity^1, p.full
		}
		if atomic.CompareAndSwapUint64(&b.state, old, p.word()) {
			return
		}
	}
}
