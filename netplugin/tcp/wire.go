// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// What a frame is.
const (
	kindPut   = 1 // store the payload at (region, off), then raise the signal, if there is one
	kindGet   = 2 // answer with length bytes at (region, off)
	kindReply = 3 // the payload of the get whose number stands in off
	kindAck   = 4 // no more than the acknowledgement that each frame carries
	kindBye   = 5 // the sender closes
	kindNo    = 6 // frame number off was refused: out of bounds, or its region is gone
	kindMost  = kindNo
)

const (
	headerBytes = 64
	wireMagic   = 0xdb
	flagSignal  = 1
)

// MaxBytes is the largest payload of a frame.
const MaxBytes = 1 << 20

// header is the fixed part of a frame: 0 magic | 1 kind | 2 flags | 3 zero | 4 epoch u32 | 8 seq u64 | 16 ack u64 |
// 24 off u64 | 32 length u32 | 36 region u32 | 40 signal region u32 | 44 context u32 | 48 signal offset u64 | 56 add u64.
// All little endian.
type header struct {
	kind      uint8
	flags     uint8
	epoch     uint32 // of the sender's member set; a frame of another one breaks its link
	seq       uint64 // number of the frame on this link, from 1; 0 for those that are not repeated
	ack       uint64 // all frames of the other direction up to it took effect
	off       uint64
	length    uint32
	region    uint32
	sigRegion uint32
	context   uint32 // of the sender's endpoint
	sigOff    uint64
	sigAdd    uint64
}

func (h *header) encode(b *[headerBytes]byte) {
	le := binary.LittleEndian
	b[0], b[1], b[2], b[3] = wireMagic, h.kind, h.flags, 0
	le.PutUint32(b[4:], h.epoch)
	le.PutUint64(b[8:], h.seq)
	le.PutUint64(b[16:], h.ack)
	le.PutUint64(b[24:], h.off)
	le.PutUint32(b[32:], h.length)
	le.PutUint32(b[36:], h.region)
	le.PutUint32(b[40:], h.sigRegion)
	le.PutUint32(b[44:], h.context)
	le.PutUint64(b[48:], h.sigOff)
	le.PutUint64(b[56:], h.sigAdd)
}

// errWire is what the error of a frame that cannot be wraps: its link is broken for good.
var errWire = errors.New("corrupt frame")

func (h *header) decode(b *[headerBytes]byte) error {
	le := binary.LittleEndian
	*h = header{
		kind: b[1], flags: b[2], epoch: le.Uint32(b[4:]), seq: le.Uint64(b[8:]), ack: le.Uint64(b[16:]), off: le.Uint64(b[24:]),
		length: le.Uint32(b[32:]), region: le.Uint32(b[36:]), sigRegion: le.Uint32(b[40:]), context: le.Uint32(b[44:]), sigOff: le.Uint64(b[48:]), sigAdd: le.Uint64(b[56:]),
	}
	switch {
	case b[0] != wireMagic:
		return fmt.Errorf("%w: begins with %#x, %#x is accepted", errWire, b[0], wireMagic)
	case h.kind < 1 || h.kind > kindMost:
		return fmt.Errorf("%w: kind %d, 1 to %d is accepted", errWire, h.kind, kindMost)
	case b[3] != 0 || h.flags&^flagSignal != 0:
		return fmt.Errorf("%w: flags %#x, spare %d", errWire, h.flags, b[3])
	case h.length > MaxBytes:
		return fmt.Errorf("%w: %d bytes, at most %d are accepted", errWire, h.length, MaxBytes)
	case (h.seq == 0) != (h.kind == kindAck || h.kind == kindBye):
		return fmt.Errorf("%w: kind %d has number %d", errWire, h.kind, h.seq)
	case h.length != 0 && h.kind != kindPut && h.kind != kindGet && h.kind != kindReply:
		return fmt.Errorf("%w: kind %d of %d bytes", errWire, h.kind, h.length)
	}
	return nil
}

// payload is how many bytes follow the header.
func (h *header) payload() int {
	if h.kind == kindPut || h.kind == kindReply {
		return int(h.length)
	}
	return 0
}
