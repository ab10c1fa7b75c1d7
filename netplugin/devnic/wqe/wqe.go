// SPDX-License-Identifier: Apache-2.0

// Package wqe is the formats by which a program and an mlx5 NIC speak to each other: the work-queue entries (WQEs) of a send
// queue, the completion-queue entries (CQEs), and the doorbell. Device code builds the former and reads the latter.
//
// Each WQE here is one basic block of 64 bytes, made of segments of 16 bytes whose fields are big-endian: a control segment,
// and by operation a remote address, an atomic's operand, a pointer to local memory or the data itself, or what to wait for.
// The formats are those of public headers: rdma-core's providers/mlx5/mlx5dv.h (segments, opcodes, syndromes), and DPDK's
// mlx5_prm.h (the segment of a wait).
package wqe

import (
	"errors"
	"fmt"
	"math/bits"
)

// Words is how many words a block has, and Bytes how many bytes.
const (
	Words = 8
	Bytes = 8 * Words
)

// Block is a WQE or a CQE, as a little-endian machine loads and stores it.
type Block [Words]uint64

// Operations of a WQE.
const (
	OpNop      = 0x00
	OpWrite    = 0x08
	OpWait     = 0x0f
	OpRead     = 0x10
	OpFetchAdd = 0x12
)

// MaxInline is how many bytes a write carries in itself here. A block has room for 28; device code sends a value of 8.
const MaxInline = 8

// MaxMessage is the largest write or read, bytes: the count has 31 bits.
const MaxMessage = 1<<31 - 1

// FirstIndex is the number of a queue's first WQE, and of its first CQE: the low 16 bits, which are what a NIC knows of it, are
// 0, and 65,536 WQEs later the number wraps.
const FirstIndex uint64 = 1<<64 - 1<<16

const (
	cqUpdate   = 0x08 << 32 // in the control segment's second word: a CQE is written
	inlineBit  = 1 << 31    // in a byte count: the data follows
	countBits  = 1<<31 - 1
	numberBits = 1<<24 - 1 // of queue pairs and completion queues
)

// be is a word whose first byte in memory is v's highest.
func be(v uint64) uint64 { return bits.ReverseBytes64(v) }

// pair is two fields of 32 bits that follow each other.
func pair(first, second uint32) uint64 { return be(uint64(first)<<32 | uint64(second)) }

// control is the control segment of WQE number index of a queue pair: an operation of so many segments, which gives a CQE.
func (b *Block) control(index uint64, op, qpn, segments uint32) {
	b[0] = pair(uint32(index&0xffff)<<8|op, qpn<<8|segments)
	b[1] = be(cqUpdate)
}

// remote is the segment that says where at the peer.
func (b *Block) remote(addr uint64, key uint32) { b[2], b[3] = be(addr), pair(key, 0) }

// Nop is WQE number index of queue pair qpn: nothing.
func (b *Block) Nop(index uint64, qpn uint32) { b.control(index, OpNop, qpn, 1) }

// Write copies bytes (1 to MaxMessage) from this rank's memory to the peer's.
func (b *Block) Write(index uint64, qpn uint32, to uint64, toKey uint32, from uint64, fromKey, bytes uint32) {
	b.control(index, OpWrite, qpn, 3)
	b.remote(to, toKey)
	b[4], b[5] = pair(bytes, fromKey), be(from)
}

// WriteValue stores the low bytes (1 to MaxInline) of a value in the peer's memory.
func (b *Block) WriteValue(index uint64, qpn uint32, to uint64, toKey uint32, value uint64, bytes uint32) {
	b.control(index, OpWrite, qpn, 3)
	b.remote(to, toKey)
	b[4] = uint64(bits.ReverseBytes32(bytes|inlineBit)) | value<<32
	b[5] = value >> 32
}

// Read copies bytes (1 to MaxMessage) from the peer's memory to this rank's.
func (b *Block) Read(index uint64, qpn uint32, from uint64, fromKey uint32, to uint64, toKey, bytes uint32) {
	b.control(index, OpRead, qpn, 3)
	b.remote(from, fromKey)
	b[4], b[5] = pair(bytes, toKey), be(to)
}

// FetchAdd adds to an aligned word of the peer's memory; what was there goes to sink in this rank's.
func (b *Block) FetchAdd(index uint64, qpn uint32, at uint64, atKey uint32, add, sink uint64, sinkKey uint32) {
	b.control(index, OpFetchAdd, qpn, 4)
	b.remote(at, atKey)
	b[4], b[5] = be(add), 0
	b[6], b[7] = pair(8, sinkKey), be(sink)
}

// Wait holds what follows in its queue until completion queue cqn has CQE number until. The NIC counts from 0.
func (b *Block) Wait(index uint64, qpn, cqn uint32, until uint64) {
	b.control(index, OpWait, qpn, 2)
	b[2], b[3] = 0, pair(uint32(until-FirstIndex), cqn)
}

// Written says whether first, the first word of a block of a queue that was zero at the beginning, is that of WQE number
// index, and not of one before it: indices of a block are less than 65,536 apart.
func Written(first, index uint64) bool {
	return first != 0 && uint16(be(first)>>40) == uint16(index)
}

// Record is the doorbell record, its word of the send queue, when all WQEs below index are written.
func Record(index uint64) uint32 { return bits.ReverseBytes32(uint32(index & 0xffff)) }

// Recorded is the low 16 bits of the index in a doorbell record.
func Recorded(record uint32) uint16 { return uint16(bits.ReverseBytes32(record)) }

// WQE is a block with its fields apart.
type WQE struct {
	Index     uint16
	Op        uint8
	Number    uint32 // of its queue pair
	Signaled  bool   // it gives a CQE
	Remote    uint64 // address at the peer
	RemoteKey uint32
	Bytes     uint32
	Inline    bool
	Value     uint64 // of an inline write
	Local     uint64 // address in this rank's memory
	LocalKey  uint32
	Add       uint64
	CQ, Until uint32 // of a wait
}

// ErrMalformed is what Decode's errors wrap.
var ErrMalformed = errors.New("malformed WQE")

// Op is the operation that a block says it is.
func (b *Block) Op() uint8 { return uint8(be(b[0]) >> 32) }

// Decode reads a block. The error says what no such NIC would take; Index, Op and Number are there all the same.
func (b *Block) Decode() (w WQE, err error) {
	first, second := be(b[0]), be(b[1])
	w = WQE{Index: uint16(first >> 40), Op: uint8(first >> 32), Number: uint32(first) >> 8, Signaled: second&cqUpdate != 0}
	switch segments, n := uint8(first), segmentsOf(w.Op); {
	case n == 0 || first>>56 != 0:
		return w, fmt.Errorf("%w: operation %#x with modifier %#x", ErrMalformed, w.Op, first>>56)
	case segments != n:
		return w, fmt.Errorf("%w: operation %#x has %d segments, %d are accepted", ErrMalformed, w.Op, segments, n)
	}
	switch w.Op {
	case OpNop:
		return w, nil
	case OpWait:
		w.Until, w.CQ = uint32(be(b[3])>>32), uint32(be(b[3]))&numberBits
		return w, nil
	}
	w.Remote, w.RemoteKey = be(b[2]), uint32(be(b[3])>>32)
	data := b[4:6]
	if w.Op == OpFetchAdd {
		w.Add = be(b[4])
		data = b[6:8]
	}
	head := be(data[0])
	w.Bytes = uint32(head>>32) & countBits
	switch w.Inline = head>>63 != 0; {
	case !w.Inline:
		w.LocalKey, w.Local = uint32(head), be(data[1])
	case w.Op != OpWrite:
		return w, fmt.Errorf("%w: operation %#x with inline data, which a write alone has", ErrMalformed, w.Op)
	case w.Bytes > MaxInline:
		return w, fmt.Errorf("%w: %d bytes inline, 1 to %d are accepted", ErrMalformed, w.Bytes, MaxInline)
	default:
		w.Value = data[0]>>32 | data[1]<<32
	}
	if w.Bytes == 0 || w.Op == OpFetchAdd && w.Bytes != 8 {
		return w, fmt.Errorf("%w: operation %#x of %d bytes: a fetch-add has 8, others 1 or more", ErrMalformed, w.Op, w.Bytes)
	}
	return w, nil
}

// segmentsOf is how many segments an operation has, 0 for one that is not there.
func segmentsOf(op uint8) uint8 {
	switch op {
	case OpNop:
		return 1
	case OpWait:
		return 2
	case OpWrite, OpRead:
		return 3
	case OpFetchAdd:
		return 4
	}
	return 0
}
