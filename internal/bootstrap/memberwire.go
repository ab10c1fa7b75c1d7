// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"encoding/binary"
	"fmt"
)

// A member's message on the wire, little endian, in the payload of a frame of kind member:
//
//	0 kind u8 | 1 verdict there u8 | 2 flags u8: 1 the row asks, 2 the verdict is agreed | 3 zero u8 | 4 epoch u32 | 8 ballot u64 | 16 accepted ballot u64
//	24 sets of (size+63)/64 words: suspect, ended, left, unwanted if the kind has a row; set, left if a verdict is there
//	then the text of a stop
const (
	memberBytes    = 24
	maxMemberBytes = memberBytes + 6*MaxRanks/8 + maxText
)

func (m *message) hasRow() bool { return m.kind == msgRow || m.kind == msgPromise }

func (m *message) hasVerdict() bool {
	return m.kind == msgAccept || m.kind == msgDecided || m.kind == msgPromise && m.accepted != 0
}

const (
	flagAsks   = 1
	flagAgreed = 2
)

func (m *message) flags() (f uint8) {
	if m.row.asks {
		f |= flagAsks
	}
	if m.verdict.agreed {
		f |= flagAgreed
	}
	return f
}

func appendMessage(b []byte, m *message) []byte {
	le := binary.LittleEndian
	has := uint8(0)
	if m.hasVerdict() {
		has = 1
	}
	b = append(b, m.kind, has, m.flags(), 0)
	b = le.AppendUint32(b, m.epoch)
	b = le.AppendUint64(b, uint64(m.ballot))
	b = le.AppendUint64(b, uint64(m.accepted))
	var sets []rankSet
	if m.hasRow() {
		sets = append(sets, m.row.suspect, m.row.ended, m.row.left, m.row.unwanted)
	}
	if has == 1 {
		sets = append(sets, m.verdict.set, m.verdict.left)
	}
	for _, s := range sets {
		for _, w := range s {
			b = le.AppendUint64(b, w)
		}
	}
	if m.kind == msgStop {
		b = append(b, clip(m.text)...)
	}
	return b
}

// decodeMessage accepts exactly what appendMessage makes in a group of that size.
func decodeMessage(b []byte, size int) (message, error) {
	le := binary.LittleEndian
	if len(b) < memberBytes {
		return message{}, fmt.Errorf("bad member message: %d bytes, accepted is at least %d", len(b), memberBytes)
	}
	m := message{kind: b[0], epoch: le.Uint32(b[4:]), ballot: ballot(le.Uint64(b[8:])), accepted: ballot(le.Uint64(b[16:]))}
	if m.kind < msgRow || m.kind > msgStop || b[3] != 0 {
		return message{}, fmt.Errorf("bad member message: kind is %d, accepted is %d to %d; then %#x, accepted is 0", m.kind, msgRow, msgStop, b[3])
	}
	if m.hasVerdict() != (b[1] == 1) || b[1] > 1 || m.accepted != 0 && m.kind != msgPromise {
		return message{}, fmt.Errorf("bad member message: kind %d, accepted ballot %#x, verdict there %d", m.kind, uint64(m.accepted), b[1])
	}
	if vote := m.kind >= msgPrepare && m.kind <= msgAccepted; vote != (m.ballot != 0) || m.ballot.rank() >= size || m.accepted.rank() >= size {
		return message{}, fmt.Errorf("bad member message: kind %d: ballots %#x, %#x", m.kind, uint64(m.ballot), uint64(m.accepted))
	}
	rest := b[memberBytes:]
	var err error
	next := func() rankSet {
		s := newRankSet(size)
		if len(rest) < 8*len(s) {
			err = fmt.Errorf("bad member message: kind %d: cut short", m.kind)
			return s
		}
		for i := range s {
			s[i] = le.Uint64(rest[8*i:])
		}
		rest = rest[8*len(s):]
		if size%64 != 0 && s[len(s)-1]>>(size%64) != 0 {
			err = fmt.Errorf("bad member message: kind %d: ranks beyond %d", m.kind, size-1)
		}
		return s
	}
	if m.hasRow() {
		m.row = row{next(), next(), next(), next(), b[2]&flagAsks != 0}
	}
	if m.hasVerdict() {
		m.verdict = verdict{next(), next(), b[2]&flagAgreed != 0}
	}
	if err == nil && m.flags() != b[2] {
		err = fmt.Errorf("bad member message: kind %d: flags are %#x", m.kind, b[2])
	}
	if err != nil {
		return message{}, err
	}
	if m.kind == msgStop && len(rest) <= maxText {
		m.text, rest = string(rest), nil
	}
	if len(rest) != 0 {
		return message{}, fmt.Errorf("bad member message: kind %d: %d bytes too many", m.kind, len(rest))
	}
	return m, nil
}
