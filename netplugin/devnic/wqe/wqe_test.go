// SPDX-License-Identifier: Apache-2.0

package wqe_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// image is a block as it lies in memory.
func image(b *wqe.Block) []byte {
	var out []byte
	for _, w := range b {
		out = binary.LittleEndian.AppendUint64(out, w)
	}
	return out
}

func block(b []byte) (out wqe.Block) {
	for i := range min(len(b), wqe.Bytes) {
		out[i/8] |= uint64(b[i]) << (i % 8 * 8)
	}
	return out
}

func golden(text string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		panic(err)
	}
	return append(b, make([]byte, wqe.Bytes-len(b))...)
}

// Each field stands where the headers' structures have it: control {opmod 8, index 16, opcode 8; qpn 24, segments 8;
// signature 8, 16 bits, fm_ce_se 8; imm 32}, remote {address 64, key 32, 32}, data {count 32, key 32, address 64}, inline
// {1 and count 31, data}, atomic {add 64, compare 64}, wait {64, index 32, cqn 32}.
func TestWQEGolden(t *testing.T) {
	const index, qpn = 0xabcd5678, 0x123456
	first := wqe.FirstIndex // additions wrap
	for _, c := range []struct {
		name  string
		build func(b *wqe.Block)
		bytes string
		want  wqe.WQE
	}{
		{"nop", func(b *wqe.Block) { b.Nop(index, qpn) }, "00567800 12345601 00000008 00000000",
			wqe.WQE{Op: wqe.OpNop}},
		{"write", func(b *wqe.Block) {
			b.Write(index, qpn, 0x0102030405060708, 0x11121314, 0x2122232425262728, 0x31323334, 0x41424344)
		},
			"00567808 12345603 00000008 00000000 0102030405060708 11121314 00000000 41424344 31323334 2122232425262728",
			wqe.WQE{Op: wqe.OpWrite, Remote: 0x0102030405060708, RemoteKey: 0x11121314, Bytes: 0x41424344, Local: 0x2122232425262728, LocalKey: 0x31323334}},
		{"write value", func(b *wqe.Block) { b.WriteValue(index, qpn, 0x0102030405060708, 0x11121314, 0x8877665544332211, 8) },
			"00567808 12345603 00000008 00000000 0102030405060708 11121314 00000000 80000008 1122334455667788 00000000",
			wqe.WQE{Op: wqe.OpWrite, Remote: 0x0102030405060708, RemoteKey: 0x11121314, Bytes: 8, Inline: true, Value: 0x8877665544332211}},
		{"read", func(b *wqe.Block) {
			b.Read(index, qpn, 0x0102030405060708, 0x11121314, 0x2122232425262728, 0x31323334, 1)
		},
			"00567810 12345603 00000008 00000000 0102030405060708 11121314 00000000 00000001 31323334 2122232425262728",
			wqe.WQE{Op: wqe.OpRead, Remote: 0x0102030405060708, RemoteKey: 0x11121314, Bytes: 1, Local: 0x2122232425262728, LocalKey: 0x31323334}},
		{"fetch-add", func(b *wqe.Block) {
			b.FetchAdd(index, qpn, 0x0102030405060708, 0x11121314, 0x5152535455565758, 0x2122232425262728, 0x31323334)
		},
			"00567812 12345604 00000008 00000000 0102030405060708 11121314 00000000 5152535455565758 0000000000000000 00000008 31323334 2122232425262728",
			wqe.WQE{Op: wqe.OpFetchAdd, Remote: 0x0102030405060708, RemoteKey: 0x11121314, Bytes: 8, Add: 0x5152535455565758, Local: 0x2122232425262728, LocalKey: 0x31323334}},
		{"wait", func(b *wqe.Block) { b.Wait(index, qpn, 0xfedcba, first+0x9_8765_4321) },
			"0056780f 12345602 00000008 00000000 0000000000000000 87654321 00fedcba",
			wqe.WQE{Op: wqe.OpWait, CQ: 0xfedcba, Until: 0x87654321}},
	} {
		var b wqe.Block
		c.build(&b)
		want := golden(c.bytes)
		if got := image(&b); string(got) != string(want) {
			t.Errorf("%s:\ngot  %x\nwant %x", c.name, got, want)
		}
		c.want.Index, c.want.Number, c.want.Signaled = 0x5678, qpn, true
		if got, err := b.Decode(); err != nil || got != c.want {
			t.Errorf("%s: decoded %+v, %v, want %+v", c.name, got, err, c.want)
		}
		if !wqe.Written(b[0], index) || wqe.Written(b[0], index-64) || wqe.Written(b[0], index+1) || wqe.Written(0, 0) {
			t.Errorf("%s: the first word is not that of its index alone", c.name)
		}
	}
	if wqe.Record(0xabc1234) != bits.ReverseBytes32(0x1234) || wqe.Recorded(wqe.Record(0xabc1234)) != 0x1234 {
		t.Error("the doorbell record is not the low 16 bits, big-endian")
	}
}

// A failed CQE has its syndrome at byte 55 and the maker's word at 54; opcode and number stand at 56, the index at 60, what it
// is and its owner at 63.
func TestCQEGolden(t *testing.T) {
	for _, c := range []struct {
		cqe  wqe.CQE
		tail string
	}{
		{wqe.CQE{Is: wqe.CQEDone, Owner: 1, Index: 0x1234, Number: 0xabcdef}, "0000 00abcdef 1234 00 01"},
		{wqe.CQE{Is: wqe.CQEFailed, Index: 0xfffe, Number: 7, Op: wqe.OpWrite, Syndrome: wqe.RemoteAccess, Vendor: 0x88}, "8813 08000007 fffe 00 d0"},
	} {
		var b wqe.Block
		c.cqe.Encode(&b)
		want := append(make([]byte, 54), golden(c.tail)[:10]...)
		if got := image(&b); string(got) != string(want) {
			t.Errorf("%+v:\ngot  %x\nwant %x", c.cqe, got, want)
		}
		if got := b.DecodeCQE(); got != c.cqe {
			t.Errorf("decoded %+v, want %+v", got, c.cqe)
		}
		tail := wqe.Tail(b[wqe.TailWord])
		if tail.Is() != uint32(c.cqe.Is) || tail.Owner() != uint32(c.cqe.Owner) {
			t.Errorf("%+v: its tail says %#x of owner %d", c.cqe, tail.Is(), tail.Owner())
		}
		for _, off := range []int64{-32768, -1, 0, 1, 32767} {
			if got := tail.Ahead(uint64(c.cqe.Index) + 1<<40 - uint64(off)); got != off {
				t.Errorf("%+v: %d ahead, want %d", c.cqe, got, off)
			}
		}
	}
	if wqe.EmptyTail.Is() != wqe.CQEInvalid || wqe.EmptyTail.Owner() != 1 {
		t.Errorf("an empty CQE says %#x", uint64(wqe.EmptyTail))
	}
}

// What the encoders never write is refused by name.
func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ name, bytes string }{
		{"an operation that is not there", "0000000a 00000103"},
		{"a modifier", "01000008 00000103"},
		{"a segment too few", "00000008 00000102"},
		{"a segment too many", "00000012 00000105"},
		{"no bytes", "00000008 00000103 00000008 00000000 0000000000000000 00000000 00000000 00000000"},
		{"inline data of a read", "00000010 00000103 00000008 00000000 0000000000000000 00000000 00000000 80000001"},
		{"too much inline", "00000008 00000103 00000008 00000000 0000000000000000 00000000 00000000 80000009"},
		{"a fetch-add of 4 bytes", "00000012 00000104 00000008 00000000 0000000000000000 00000000 00000000 0000000000000001 0000000000000000 00000004"},
	} {
		b := block(golden(c.bytes))
		if w, err := b.Decode(); !errors.Is(err, wqe.ErrMalformed) {
			t.Errorf("%s: decoded %+v, %v", c.name, w, err)
		}
	}
}

// Any bytes decode or are refused; what decodes is what its encoder writes, but for bits that mean nothing.
func FuzzWQE(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, op := range []byte{wqe.OpNop, wqe.OpWrite, wqe.OpWait, wqe.OpRead, wqe.OpFetchAdd} {
		b := make([]byte, wqe.Bytes)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		b[0], b[3], b[7] = 0, op, map[byte]byte{wqe.OpNop: 1, wqe.OpWait: 2, wqe.OpFetchAdd: 4}[op]
		if b[7] == 0 {
			b[7] = 3
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		b := block(raw)
		w, err := b.Decode()
		if err != nil {
			return
		}
		var again wqe.Block
		switch {
		case w.Op == wqe.OpNop:
			again.Nop(uint64(w.Index), w.Number)
		case w.Op == wqe.OpWait:
			again.Wait(uint64(w.Index), w.Number, w.CQ, wqe.FirstIndex+uint64(w.Until))
		case w.Op == wqe.OpFetchAdd:
			again.FetchAdd(uint64(w.Index), w.Number, w.Remote, w.RemoteKey, w.Add, w.Local, w.LocalKey)
		case w.Op == wqe.OpRead:
			again.Read(uint64(w.Index), w.Number, w.Remote, w.RemoteKey, w.Local, w.LocalKey, w.Bytes)
		case w.Inline:
			again.WriteValue(uint64(w.Index), w.Number, w.Remote, w.RemoteKey, w.Value, w.Bytes)
		default:
			again.Write(uint64(w.Index), w.Number, w.Remote, w.RemoteKey, w.Local, w.LocalKey, w.Bytes)
		}
		w.Signaled = true
		if got, err := again.Decode(); err != nil || got != w {
			t.Fatalf("decoded %+v, and encoded again %+v, %v", w, got, err)
		}
	})
}

func FuzzCQE(f *testing.F) {
	f.Add(make([]byte, wqe.Bytes))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b := block(raw)
		c := b.DecodeCQE()
		var again wqe.Block
		c.Encode(&again)
		if got := again.DecodeCQE(); got.Is != c.Is || got.Index != c.Index || got.Number != c.Number || got.Syndrome != c.Syndrome || got.Owner != c.Owner {
			t.Fatalf("decoded %+v, and encoded again %+v", c, got)
		}
	})
}
