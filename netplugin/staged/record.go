// SPDX-License-Identifier: Apache-2.0

package staged

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Kinds of records.
const (
	kindPad     = 1 + iota // nothing, up to the end of the ring
	kindPut                // payload to (region, off), then the signal, if there is one; a signal alone is one of 0 bytes
	kindGet                // of length bytes at (region, off); no payload
	kindReply              // what the get of this token was for
	kindRefusal            // of the request of this sequence number
	kindMost    = kindRefusal
)

// recordBytes is a header's size, and what records are a multiple of.
const recordBytes = 64

// header is how a record begins. All words are little endian:
//
//	0 kind 1, raise 1, zero 2, length 4    16 offset 8           32 add 8         48 context 4, zero 4
//	8 region 4, signal's region 4          24 signal's offset 8  40 token 8       56 sequence number 8
type header struct {
	kind              uint8
	raise             bool
	length            uint32
	region, sigRegion uint32
	off, sigOff       uint64
	sigAdd            uint64
	token             uint64 // of a get and its reply
	context           uint32
	seq               uint64 // of a request among those of its ring, from 1; of a refusal the request's
}

func (h *header) encode(b []byte) {
	b[0], b[1], b[2], b[3] = h.kind, 0, 0, 0
	if h.raise {
		b[1] = 1
	}
	le := binary.LittleEndian
	le.PutUint32(b[4:], h.length)
	le.PutUint32(b[8:], h.region)
	le.PutUint32(b[12:], h.sigRegion)
	le.PutUint64(b[16:], h.off)
	le.PutUint64(b[24:], h.sigOff)
	le.PutUint64(b[32:], h.sigAdd)
	le.PutUint64(b[40:], h.token)
	le.PutUint64(b[48:], uint64(h.context))
	le.PutUint64(b[56:], h.seq)
}

var errRecord = errors.New("bad record")

// decode reads a header; the error wraps errRecord.
func (h *header) decode(b []byte) error {
	le := binary.LittleEndian
	*h = header{
		kind: b[0], raise: b[1] == 1, length: le.Uint32(b[4:]), region: le.Uint32(b[8:]), sigRegion: le.Uint32(b[12:]), off: le.Uint64(b[16:]),
		sigOff: le.Uint64(b[24:]), sigAdd: le.Uint64(b[32:]), token: le.Uint64(b[40:]), context: le.Uint32(b[48:]), seq: le.Uint64(b[56:]),
	}
	switch {
	case h.kind < 1 || h.kind > kindMost:
		return fmt.Errorf("%w: kind %d, 1 to %d are accepted", errRecord, h.kind, kindMost)
	case b[1] > 1 || b[2] != 0 || b[3] != 0 || le.Uint32(b[52:]) != 0:
		return fmt.Errorf("%w: flags %#x", errRecord, b[1:4])
	case h.kind != kindPad && h.length > MaxBytes:
		return fmt.Errorf("%w: %d bytes, at most %d are accepted", errRecord, h.length, MaxBytes)
	case h.raise && h.kind != kindPut, h.kind == kindRefusal && h.length != 0:
		return fmt.Errorf("%w: kind %d of %d bytes, with a signal: %v", errRecord, h.kind, h.length, h.raise)
	}
	return nil
}

// bytes is what the record takes of its ring.
func (h *header) bytes() uint64 {
	if h.kind == kindGet {
		return recordBytes
	}
	return recordBytes + roundUp(uint64(h.length))
}

func roundUp(n uint64) uint64 { return (n + recordBytes - 1) &^ (recordBytes - 1) }
