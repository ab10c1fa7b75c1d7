// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"fmt"
	"hash/fnv"
)

// Word says where the bits of a field stand: bits [Lo, Lo+Bits) of descriptor word Index hold bits [From, From+Bits)
// of the field's value.
type Word struct{ Index, Lo, Bits, From int }

// Field is one field of the descriptor.
type Field struct {
	Name  string
	Doc   string
	Type  string // Go type
	Parts []Word
}

// Layout is the descriptor of the Proxy backend: 8 words of 64 bits. Bit 63 of each word is the phase. The encoder,
// the decoder and the C++ header are generated from this table (go generate ./internal/abi).
var Layout = []Field{
	{"Size", "payload bytes", "uint64", []Word{{0, 0, 48, 0}}},
	{"Flags", "Flag bits", "uint8", []Word{{0, 50, 8, 0}}},
	{"Op", "Op code", "uint8", []Word{{0, 58, 5, 0}}},
	{"DstOff", "offset in the window at the peer's end", "uint64", []Word{{1, 0, 63, 0}}},
	{"Src", "offset in the window at this end, or the value itself (OpPutValue)", "uint64", []Word{{2, 0, 63, 0}, {0, 49, 1, 63}}},
	{"SigVal", "what the signal adds", "uint64", []Word{{3, 0, 63, 0}, {0, 48, 1, 63}}},
	{"SigOff", "offset in the signal's window (FlagAtAddress)", "uint64", []Word{{4, 0, 63, 0}}},
	{"DstGen", "generation of the window at the peer's end, low bits", "uint32", []Word{{5, 0, 31, 0}}},
	{"DstWin", "id of the window at the peer's end", "uint32", []Word{{5, 31, 32, 0}}},
	{"SigGen", "generation of the signal's window, low bits (FlagAtAddress)", "uint32", []Word{{6, 0, 27, 0}}},
	{"Version", "DescVersion", "uint8", []Word{{6, 27, 4, 0}}},
	{"SrcWin", "id of the window at this end", "uint32", []Word{{6, 31, 32, 0}}},
	{"Counter", "counter id (FlagCounter)", "uint32", []Word{{7, 0, 31, 0}}},
	{"SigID", "signal id, or id of its window (FlagAtAddress)", "uint32", []Word{{7, 31, 32, 0}}},
}

// DescWords is the number of words of a descriptor, DescBytes its size.
const (
	DescWords = 8
	DescBytes = 8 * DescWords
)

// PhaseBit is the top bit of each descriptor word. It is ((ticket / depth) & 1) ^ 1: a queue of zeroed slots holds
// nothing of ticket 0, and each lap over the queue flips it. So no fence is needed between the words of a descriptor.
const PhaseBit = uint64(1) << 63

// DescVersion is the version of the layout.
const DescVersion = 2

// Operations.
const (
	OpPut      = 1 // copy Size bytes from the source window
	OpPutValue = 2 // store the low Size bytes (1 to 8) of Src
	OpPutCell  = 3 // store Size bytes that stand in the slot's cell
	OpSignal   = 4 // no payload
	OpGet      = 5 // copy Size bytes from the peer's window to this rank's
)

// Flags.
const (
	FlagSignalInc = 1 << 0 // add 1 to the signal
	FlagSignalAdd = 1 << 1 // add SigVal to the signal
	FlagStrong    = 1 << 2 // the signal covers all earlier puts of the queue
	FlagAtAddress = 1 << 3 // the signal is a word of a signal window
	FlagCounter   = 1 << 4 // add 1 to the counter when the source may be reused
	FlagAggregate = 1 << 5 // more follows: no hint was given
)

// SigGenMask is the bits of a signal window's generation that a descriptor carries.
const SigGenMask = 1<<27 - 1

// A cell carries a small payload beside the slot, CellPayload bytes at most, 7 in each word below the phase bit.
const (
	CellPayload     = 256
	CellWordPayload = 7
	CellWords       = 40 // (256 + 6) / 7 = 37, rounded up to whole 64-byte lines
)

// LayoutHash is a number that changes when the descriptor's layout, or the version of DevComm, does. Ranks with
// different ones refuse each other.
func LayoutHash() uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d %d %v", DescVersion, DevCommVersion, CellPayload, CellWords, Layout)
	return h.Sum64()
}
