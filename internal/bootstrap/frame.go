// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// A frame on the wire, little endian:
//
//	0 magic u32 | 4 kind u8 | 5 name length u8 | 6 descriptors u16 | 8 body length u32 | 12 zero u32
//	16 sequence u64 | 24 FNV-1a 64 of the name | 32 body: name, then payload
//
// A contribution is any number of rights frames, then one data frame whose descriptor count is their sum; or a fail
// frame, which voids rights frames of the same sequence. Every value is checked before it is believed.
const (
	headerBytes        = 32
	frameMagic  uint32 = 0x31464244 // "DBF1"

	kindData    uint8 = 1
	kindRights  uint8 = 2 // its descriptors travel in the same message
	kindFail    uint8 = 3
	kindGoodbye uint8 = 4
	kindBeat    uint8 = 5 // a sign of life
	kindMember  uint8 = 6 // see memberwire.go
	kindCard    uint8 = 7 // see card.go; this and the next only while ranks meet
	kindTable   uint8 = 8
	kindAbsent  uint8 = 9 // whom rank 0 waits for: bits of a set of ranks
	kindMost          = kindAbsent

	rightsBatch = 250 // the kernel accepts 253 a message
)

type frame struct {
	kind    uint8
	fds     int
	seq     uint64
	name    string
	payload []byte
}

func nameHash(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// checkFrame holds the bounds of each kind; encoder and decoder share it.
func checkFrame(kind uint8, seq uint64, nameLen, payload, fds int) error {
	bad := func(what string, got, most int) error {
		return fmt.Errorf("bad frame: kind %d: %s is %d, accepted is at most %d", kind, what, got, most)
	}
	maxName, maxPayload, maxFDs := 0, 0, 0
	switch kind {
	case kindData:
		maxName, maxPayload, maxFDs = MaxName, MaxBytes, MaxFDs
	case kindRights:
		maxFDs = rightsBatch
		if fds == 0 {
			return fmt.Errorf("bad frame: kind %d: no descriptors", kind)
		}
	case kindFail:
		maxName, maxPayload = MaxName, maxText
	case kindGoodbye:
		maxPayload = maxText
	case kindBeat:
	case kindMember:
		maxPayload = maxMemberBytes
	case kindCard:
		maxPayload = maxCardBytes
	case kindTable:
		maxPayload = MaxBytes
	case kindAbsent:
		maxPayload = MaxRanks / 8
	default:
		return fmt.Errorf("bad frame: kind is %d, accepted is %d to %d", kind, kindData, kindMost)
	}
	if kind >= kindGoodbye && seq != 0 {
		return fmt.Errorf("bad frame: kind %d: sequence is %d, accepted is 0", kind, seq)
	}
	switch {
	case nameLen > maxName:
		return bad("name length", nameLen, maxName)
	case payload > maxPayload:
		return bad("payload", payload, maxPayload)
	case fds > maxFDs:
		return bad("descriptor count", fds, maxFDs)
	}
	return nil
}

// appendFrame encodes f behind dst. It refuses what the decoder would refuse.
func appendFrame(dst []byte, f *frame) ([]byte, error) {
	if f.fds < 0 {
		return dst, fmt.Errorf("bad frame: kind %d: descriptor count is %d", f.kind, f.fds)
	}
	if err := checkFrame(f.kind, f.seq, len(f.name), len(f.payload), f.fds); err != nil {
		return dst, err
	}
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, frameMagic)
	dst = append(dst, f.kind, uint8(len(f.name)))
	dst = le.AppendUint16(dst, uint16(f.fds))
	dst = le.AppendUint32(dst, uint32(len(f.name)+len(f.payload)))
	dst = le.AppendUint32(dst, 0)
	dst = le.AppendUint64(dst, f.seq)
	dst = le.AppendUint64(dst, nameHash(f.name))
	dst = append(dst, f.name...)
	return append(dst, f.payload...), nil
}

// readFrame reads exactly one frame. It returns io.EOF only where no byte of a frame came; memory grows with the bytes
// that really arrive, not with the length that the peer claims.
func readFrame(r io.Reader) (frame, error) {
	var h [headerBytes]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return frame{}, err
	}
	le := binary.LittleEndian
	if m := le.Uint32(h[0:]); m != frameMagic {
		return frame{}, fmt.Errorf("bad frame: magic is %#x, accepted is %#x", m, frameMagic)
	}
	if z := le.Uint32(h[12:]); z != 0 {
		return frame{}, fmt.Errorf("bad frame: reserved word is %#x, accepted is 0", z)
	}
	f := frame{kind: h[4], fds: int(le.Uint16(h[6:])), seq: le.Uint64(h[16:])}
	nameLen, body := int(h[5]), le.Uint32(h[8:])
	if body > MaxName+MaxBytes || int(body) < nameLen {
		return frame{}, fmt.Errorf("bad frame: kind %d: body length is %d, accepted is %d to %d", f.kind, body, nameLen, MaxName+MaxBytes)
	}
	if err := checkFrame(f.kind, f.seq, nameLen, int(body)-nameLen, f.fds); err != nil {
		return frame{}, err
	}
	b, err := readGrowing(r, int(body))
	if err != nil {
		return frame{}, err
	}
	f.name = string(b[:nameLen])
	if len(b) > nameLen {
		f.payload = b[nameLen:len(b):len(b)]
	}
	if got, want := le.Uint64(h[24:]), nameHash(f.name); got != want {
		return frame{}, fmt.Errorf("bad frame: kind %d: name hash is %#x, that of %q is %#x", f.kind, got, f.name, want)
	}
	return f, nil
}

func readGrowing(r io.Reader, n int) ([]byte, error) {
	const first = 64 << 10
	b := make([]byte, min(n, first))
	have := 0
	for {
		m, err := io.ReadFull(r, b[have:])
		have += m
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF // the header promised more
			}
			return nil, err
		}
		if have == n {
			return b, nil
		}
		grown := make([]byte, min(n, 2*have))
		copy(grown, b)
		b = grown
	}
}

// clip shortens a text to what a frame carries.
func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText]
	}
	return s
}
