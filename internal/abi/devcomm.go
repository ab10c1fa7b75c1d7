// SPDX-License-Identifier: Apache-2.0

package abi

import "github.com/doorbell-net/doorbell/gpu"

// DevComm is a device communicator: what a kernel needs to reach its peers. It is passed by value and stays valid
// until its host object is closed.
//
// Where its words live on a device whose memory the host does not reach, and who writes them:
//
//	device memory   Control, Status, Lost: written by the host, as copies of what it keeps
//	                Prod, SigOffset, Shadow, CounterOffset, Barrier, LSA, Inbox, LL, LLState: by device threads; atomics are legal
//	                QPs, SignalKeys: written by the host before kernels see them
//	host memory     Net, Counter, Index: written by the host, polled by device threads
//	                Slots, Cells, Hints, Notes: written by device threads with plain stores, polled by the host
//
// With GDAKI Slots holds WQEs, which the NIC reads; it writes Net, Counter and CQ, and device threads its QP.Record and
// QP.Bell. Cells, Hints and Index are not used.
//
// All addresses are computed from what stands here: an acquire empties a GPU's first cache, and each address that had to be
// loaded would cost a post another 200 ns.
type DevComm struct {
	Version  uint32 // of this structure
	Rank     int32  // of the world
	Ranks    int32
	LSARank  int32 // in the LSA team, ranks LSABase .. LSABase+LSASize-1 of the world
	LSASize  int32
	Contexts int32
	Signals  int32 // per context, ids 0 .. Signals-1
	Counters int32 // per context
	Barriers int32 // of each kind
	Peers    int32 // queues per context: Ranks, or the rail's size when Railed
	Railed   uint32
	Inject   uint32 // Inject* fault on LSA paths, 0 in production

	SignalStride uint32 // words per context in Net and LSA: signals, then the GIN barriers'
	CellPayload  uint32 // puts up to this size travel in the descriptor or its cell
	Looks        uint32 // looks of a wait between two calls of Idle, a power of two; few where the network is polled by waiting threads
	Sharing      uint32 // Share*: which threads use a context at once
	Refused      uint32 // Flag* that this communicator was made without: a call that needs one is Invalid
	Remote       uint32 // not 0: what is complete is visible at its target
	Multimem     uint32 // not 0: kernels may use it
	LLBlocks     int32  // of LLA2A sessions at once
	LLSlots      int32  // of each, and of each half
	Together     int32  // ranks that the host's processors run at once, 0 for all: a barrier of more gives way at each look
	Timeout      uint64 // default deadline of a wait, ns

	Mask  uint64 // queue depth - 1
	Shift uint64 // log2(queue depth)

	Slots   gpu.Ptr[uint64]   // [context][peer][Mask+1][DescWords]
	Cells   gpu.Ptr[uint64]   // [context][peer][Mask+1][CellWords], nil without cells
	Hints   gpu.Ptr[uint32]   // [context][peer], low bits of a ticket after the newest; may be late or lost
	Prod    gpu.Ptr[Producer] // [context][peer]
	Index   gpu.Ptr[Index]    // [context][peer]
	Status  gpu.Ptr[uint32]   // [context][peer], a Status that sticks
	Lost    gpu.Ptr[uint32]   // [Ranks], Rank*; not 0 for a rank that is lost
	Control gpu.Ptr[Control]
	Notes   gpu.Ptr[Notes]

	Net       gpu.Ptr[uint64] // [context][SignalStride], this rank's NET words
	LSA       gpu.Ptr[uint64] // [context][SignalStride], this rank's LSA words
	SigOffset gpu.Ptr[uint64] // [context][SignalStride], what reset remembered
	Shadow    gpu.Ptr[uint64] // [context][SignalStride]
	PeerLSA   gpu.Ptr[gpu.Ptr[uint64]]

	Counter       gpu.Ptr[uint64] // [context][Counters]
	CounterOffset gpu.Ptr[uint64]

	Inbox     gpu.Ptr[uint64]          // [Barriers][LSASize], written by LSA peers
	PeerInbox gpu.Ptr[gpu.Ptr[uint64]] // [LSASize]
	Barrier   gpu.Ptr[BarrierState]    // [LSA, then each context][Barriers]

	LL      gpu.Ptr[uint64]          // [LLBlocks][epoch's parity][LLSlots][LLSlotWords], written by LSA peers
	PeerLL  gpu.Ptr[gpu.Ptr[uint64]] // [LSASize]
	LLState gpu.Ptr[LLState]         // [LLBlocks]

	Asleep gpu.Ptr[uint32] // not 0 while the progress owner sleeps

	// GDAKI: kernels drive a NIC. A context has a queue pair for each peer, and where there are counters a companion for each
	// of those, which raises them. Slots, Prod and CQ have the companions' parts behind the others'.
	QPs        gpu.Ptr[QP]     // [context][peer], then the companions
	CQ         gpu.Ptr[uint64] // as QPs, [Mask+1][DescWords]
	SignalKeys gpu.Ptr[uint32] // [Ranks], of their Net words
	NIC        uint32          `gpu:"split"` // 1: this is GDAKI; gpuc compiles kernels once with it and once without
	MaxMessage uint32          // largest operation of the NIC, bytes
	HomeKey    uint32          // of this rank's memory that the NIC writes: what fetch-adds return, and from HomeCounters on Counter
	_          uint32
}

// HomeCounters is where Counter begins in the memory that HomeKey names.
const HomeCounters = 64

// DevCommVersion is the version of DevComm and of all it points to.
const DevCommVersion = 6

// QP is a queue pair of a NIC as kernels use it.
type QP struct {
	Bell   gpu.Ptr[uint64] // its doorbell register
	Record gpu.Ptr[uint32] // its doorbell record, the send queue's word
	Number uint32
	CQ     uint32 // number of its completion queue
	_      [40]byte
}

// Queue is one context's queue to one peer.
type Queue struct {
	Slots gpu.Ptr[uint64] // [Mask+1][DescWords]
	Cells gpu.Ptr[uint64] // [Mask+1][CellWords], nil without cells
	Hint  gpu.Ptr[uint32]
	Prod  gpu.Ptr[Producer]
	Index gpu.Ptr[Index]
	Mask  uint64
	Shift uint64
}

// Queue is queue number i, context*Peers + peer.
func (d *DevComm) Queue(i int) Queue {
	q := Queue{Slots: d.Slots.At(i * int(d.Mask+1) * DescWords), Hint: d.Hints.At(i), Prod: d.Prod.At(i), Index: d.Index.At(i), Mask: d.Mask, Shift: d.Shift}
	if !d.Cells.IsNil() {
		q.Cells = d.Cells.At(i * int(d.Mask+1) * CellWords)
	}
	return q
}

// Producer is the producers' line of a queue.
type Producer struct {
	Ticket uint64 // next one to take
	Credit uint64 // tickets below it may be taken; never above what is free, may be old
	// With GDAKI, where a ticket is the number of a WQE:
	Rung    uint64 // the NIC was told of WQEs below it
	Pending uint64 // threads whose WQEs nobody has looked at yet; who makes it 1 rings the doorbell for all
	Bells   uint64 // how often it was rung
	_       [24]byte
}

// Index is the consumer's line of a queue.
type Index struct {
	Consumed  uint64 // tickets below it: slot and cell are free
	Completed uint64 // tickets below it: the source may be reused
	_         [48]byte
}

// BarrierState is the owner's side of one barrier; a barrier that timed out is taken up again where it was. Of an LSA barrier
// there is Done alone.
type BarrierState struct {
	Arrived uint64 // epoch announced, or being announced
	Done    uint64 // last epoch that was complete
	Sent    uint64 // peers told of Arrived so far
	Heard   uint64 // peers heard of so far
	Stage   uint64 // of a hybrid barrier: its parts that are complete
	_       [24]byte
}

// LLState is where an LLA2A session goes on when it is opened again.
type LLState struct {
	Epoch uint32
	_     [60]byte
}

// A slot of LLA2A has two words: the low half of each is data, the high half the epoch that they are of.
const (
	LLSlotWords  = 2
	LLFirstEpoch = 2 // the one after 2^32-1 too; memory is zeroed
)

// Control is how the host speaks to all threads of a communicator, and they among themselves.
type Control struct {
	Ended    uint32 // Aborted or Revoked once the communicator ended; written by the host, or by a kernel that gives it up
	Injected uint32 // Inject happened; written by a device thread, in tests only
	Cause    uint32 // 1 once a device thread writes Notes.Cause: the first does
	Waiter   uint32 // 1 while Notes.Waiter is written or unread; the host puts it back to 0
	_        [48]byte
}

// Notes is what device threads leave for the host.
type Notes struct {
	Cause  Record // the first cause that sticks
	Waiter Record // somebody who waits for long; the host logs it
}

// Record says what a thread or the host saw. State is 0, and 2 when all the rest is there.
type Record struct {
	State  uint32
	Status uint32
	Op     uint32
	Peer   int32 // rank of the world, -1 for several
	ID     uint32
	Ctx    uint32
	Window uint32
	// Syndrome is that of a CQE, 0 if it is none.
	Syndrome uint32
	Offset   uint64
	Wanted   uint64
	Seen     uint64
	Since    uint64 // how long it had waited, ns
}

// Window is a registered window as kernels use it: by value.
type Window struct {
	Info gpu.Ptr[WindowInfo]
	Base gpu.Ptr[byte] // this rank's bytes
	Size uint64        // of this rank
	ID   uint32
	Gen  uint32
	Far  uint32 // not 0: Base is memory of the host, and the device another one: the proxy reads it sooner than a kernel does
	LSA0 int32  // rank of the world that is LSA rank 0 here
}

// Peer is the entry of a rank of the world.
func (w *Window) Peer(world int32) gpu.Ptr[WindowPeer] { return PeerOf(w.Info, world) }

// PeerOf is a rank's entry behind a window's.
func PeerOf(info gpu.Ptr[WindowInfo], world int32) gpu.Ptr[WindowPeer] {
	return gpu.Cast[WindowPeer](gpu.Cast[byte](info).Byte(infoHead)).At(int(world))
}

// SignalWindow is a window of signals at addresses, as kernels use it: by value. Each offset that is a multiple of 8 names
// two words, as a signal's id does: NET at Net, LSA at LSA, and what reset remembered at Offset.
type SignalWindow struct {
	Info   gpu.Ptr[WindowInfo] // as a Window's: the ranks' sizes, and where the LSA words of LSA peers lie
	Net    gpu.Ptr[byte]
	LSA    gpu.Ptr[byte]
	Offset gpu.Ptr[byte]
	Size   uint64 // of this rank, bytes
	ID     uint32
	Gen    uint32
	LSA0   int32 // rank of the world that is LSA rank 0 here
	_      uint32
}

// infoHead is the bytes of a WindowInfo; the entries of the ranks, [Ranks], follow.
const infoHead = 64

// KeyOf is where a rank's key of a window stands, for NICs, behind the entries of all ranks.
func KeyOf(info gpu.Ptr[WindowInfo], ranks, world int32) gpu.Ptr[uint32] {
	return gpu.Cast[uint32](PeerOf(info, ranks)).At(int(world))
}

// InfoBytes is the size of a WindowInfo, its entries, and their keys.
func InfoBytes(ranks int) int { return (infoHead + 20*ranks + 63) &^ 63 }

// WindowPeer is a rank's part of a window.
type WindowPeer struct {
	Size uint64
	Base gpu.Ptr[byte] // nil of ranks that are not in the LSA team
}

// WindowInfo is the communicator's entry for a window id. Its memory lives as long as the communicator, so that a
// stale Window is refused and not followed.
type WindowInfo struct {
	Gen      uint32 // of the window registered now, 0 for none
	_        uint32
	Multimem gpu.Ptr[byte] // stands for the window's bytes of each LSA peer; nil for none
	_        [48]byte
}

// Which threads use a context at once.
const (
	ShareGPU    = iota // any of the device
	ShareThread        // one: it takes tickets without an atomic
	ShareBlock         // those of one block: their atomics reach no further
)

// GenMask is the bits of a generation; it is never 0.
const GenMask = 1<<31 - 1

// What DevComm.Lost says of a rank that is lost.
const (
	RankLost = 1
	RankOut  = 2 // the device communicator was made by the survivors without it
)

// Status is the result of a device call.
type Status uint32

// Results. Timeout and Invalid do not stick: the call may be repeated.
const (
	OK          Status = iota
	Timeout            // the deadline passed
	Invalid            // refused at the source; nothing was written
	PeerLost           // a rank that the call waits for is lost
	RemoteError        // refused after it was posted
	Aborted            // the communicator was aborted
	Revoked            // the communicator was revoked
)

func (s Status) String() string {
	switch s {
	case OK:
		return "OK"
	case Timeout:
		return "Timeout"
	case Invalid:
		return "Invalid"
	case PeerLost:
		return "PeerLost"
	case RemoteError:
		return "RemoteError"
	case Aborted:
		return "Aborted"
	case Revoked:
		return "Revoked"
	}
	return "Status(unknown)"
}

// What a Record's Op names.
const (
	OpWaitSignal = 32 + iota // above the descriptor's operations
	OpWaitCounter
	OpWaitCredit
	OpFlush
	OpLSABarrier
	OpGINBarrier
	OpWaitSignalAt
	OpLLA2A
	OpWQE
)

// Faults that a test asks for, on the first operation that fits.
const (
	InjectNone = iota
	InjectBitFlip
	InjectLostPut
	InjectDoubleSignal
)
