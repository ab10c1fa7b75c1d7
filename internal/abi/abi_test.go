// SPDX-License-Identifier: Apache-2.0

package abi_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/abi/abigen"
)

func TestGeneratedFilesAreCurrent(t *testing.T) {
	for file, want := range abigen.Files() {
		got, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from its table: run go generate ./internal/abi", file)
		}
	}
}

// No two fields share a bit, and none takes the phase.
func TestLayoutIsDisjoint(t *testing.T) {
	var used [abi.DescWords]uint64
	for i := range used {
		used[i] = abi.PhaseBit
	}
	for _, f := range abi.Layout {
		for _, p := range f.Parts {
			m := (uint64(1)<<p.Bits - 1) << p.Lo
			if used[p.Index]&m != 0 {
				t.Errorf("%s overlaps in word %d", f.Name, p.Index)
			}
			used[p.Index] |= m
		}
	}
}

func drawDesc(t *rapid.T) abi.Desc {
	bits := func(n int, name string) uint64 {
		// Small, large and around each power of two.
		v := rapid.Uint64().Draw(t, name) >> rapid.IntRange(0, 63).Draw(t, name+" shift")
		return v & (1<<n - 1)
	}
	return abi.Desc{
		Size: bits(48, "size"), Flags: uint8(bits(8, "flags")), Op: uint8(bits(5, "op")), DstOff: bits(63, "dstoff"),
		Src: rapid.Uint64().Draw(t, "src"), SigVal: rapid.Uint64().Draw(t, "sigval"), SigOff: bits(63, "sigoff"),
		DstGen: uint32(bits(31, "gen")), DstWin: uint32(bits(32, "dstwin")), Version: uint8(bits(4, "version")),
		SrcWin: uint32(bits(32, "srcwin")), SigGen: uint32(bits(27, "siggen")), Counter: uint32(bits(31, "counter")), SigID: uint32(bits(32, "sigid")),
	}
}

func TestDescRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDesc(t)
		phase := rapid.SampledFrom([]uint64{0, abi.PhaseBit}).Draw(t, "phase")
		if !d.Fits() {
			t.Fatalf("%+v does not fit", d)
		}
		var w [abi.DescWords]uint64
		d.Encode(&w, phase)
		for i := range w {
			if w[i]&abi.PhaseBit != phase {
				t.Fatalf("word %d has the wrong phase", i)
			}
		}
		var got abi.Desc
		got.Decode(&w)
		if got != d {
			t.Fatalf("got %+v, want %+v", got, d)
		}
	})
}

// Each field comes back whole at the largest value that the layout holds, and one more is refused where its type has one.
func TestDescRefusesWhatItCannotHold(t *testing.T) {
	for _, f := range abi.Layout {
		bits := 0
		for _, p := range f.Parts {
			bits += p.Bits
		}
		var d, got abi.Desc
		var w [abi.DescWords]uint64
		v := reflect.ValueOf(&d).Elem().FieldByName(f.Name)
		most := uint64(1)<<bits - 1
		v.SetUint(most)
		d.Encode(&w, 0)
		got.Decode(&w)
		if !d.Fits() || got != d {
			t.Errorf("%s of %#x: fits %v, comes back as %+v", f.Name, most, d.Fits(), got)
		}
		if bits == v.Type().Bits() {
			continue
		}
		if v.SetUint(most + 1); d.Fits() {
			t.Errorf("%s of %#x is said to fit", f.Name, most+1)
		}
	}
}

// The golden vector: another implementation must give these words.
func TestDescGolden(t *testing.T) {
	d := abi.Desc{
		Op: abi.OpPut, Flags: abi.FlagSignalAdd | abi.FlagStrong | abi.FlagCounter, Size: 0x0000123456789abc,
		DstOff: 0x1122334455667788, Src: 0x8070605040302010, SigVal: 0xfedcba9876543210, SigOff: 0x0102030405060708,
		DstGen: 0x1234567, DstWin: 0x89abcdef, Version: abi.DescVersion, SrcWin: 0xdeadbeef, SigGen: 0x5a5a5a5, Counter: 0x7654321, SigID: 0xcafef00d,
	}
	var w [abi.DescWords]uint64
	d.Encode(&w, abi.PhaseBit)
	want := [abi.DescWords]uint64{
		0x845b123456789abc, 0x9122334455667788, 0x8070605040302010, 0xfedcba9876543210,
		0x8102030405060708, 0xc4d5e6f781234567, 0xef56df7795a5a5a5, 0xe57f780687654321,
	}
	if w != want {
		t.Errorf("got  %#x\nwant %#x", w, want)
	}
}

func FuzzDesc(f *testing.F) {
	f.Add(make([]byte, abi.DescBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		var w, again [abi.DescWords]uint64
		for i := range min(len(b), abi.DescBytes) {
			w[i/8] |= uint64(b[i]) << (i % 8 * 8)
		}
		var d abi.Desc
		d.Decode(&w)
		if !d.Fits() {
			t.Fatalf("decoded %+v, which does not fit", d)
		}
		d.Encode(&again, w[0]&abi.PhaseBit)
		var e abi.Desc
		e.Decode(&again)
		if e != d {
			t.Fatalf("decoded %+v, then %+v", d, e)
		}
	})
}

// Offsets are part of the contract with compiled kernels and the C++ header.
func TestOffsets(t *testing.T) {
	golden := map[string][]string{
		"DevComm":      {"Version 0", "Rank 4", "Ranks 8", "LSARank 12", "LSASize 16", "Contexts 20", "Signals 24", "Counters 28", "Barriers 32", "Peers 36", "Railed 40", "Inject 44", "SignalStride 48", "CellPayload 52", "Looks 56", "Sharing 60", "Refused 64", "Remote 68", "Multimem 72", "LLBlocks 76", "LLSlots 80", "Together 84", "Timeout 88", "Mask 96", "Shift 104", "Slots 112", "Cells 120", "Hints 128", "Prod 136", "Index 144", "Status 152", "Lost 160", "Control 168", "Notes 176", "Net 184", "LSA 192", "SigOffset 200", "Shadow 208", "PeerLSA 216", "Counter 224", "CounterOffset 232", "Inbox 240", "PeerInbox 248", "Barrier 256", "LL 264", "PeerLL 272", "LLState 280", "Asleep 288", "QPs 296", "CQ 304", "SignalKeys 312", "NIC 320", "MaxMessage 324", "HomeKey 328", "size 336"},
		"Producer":     {"Ticket 0", "Credit 8", "Rung 16", "Pending 24", "Bells 32", "size 64"},
		"QP":           {"Bell 0", "Record 8", "Number 16", "CQ 20", "size 64"},
		"Index":        {"Consumed 0", "Completed 8", "size 64"},
		"BarrierState": {"Arrived 0", "Done 8", "Sent 16", "Heard 24", "Stage 32", "size 64"},
		"LLState":      {"Epoch 0", "size 64"},
		"Control":      {"Ended 0", "Injected 4", "Cause 8", "Waiter 12", "size 64"},
		"Notes":        {"Cause 0", "Waiter 64", "size 128"},
		"Record":       {"State 0", "Status 4", "Op 8", "Peer 12", "ID 16", "Ctx 20", "Window 24", "Syndrome 28", "Offset 32", "Wanted 40", "Seen 48", "Since 56", "size 64"},
		"Window":       {"Info 0", "Base 8", "Size 16", "ID 24", "Gen 28", "Far 32", "LSA0 36", "size 40"},
		"SignalWindow": {"Info 0", "Net 8", "LSA 16", "Offset 24", "Size 32", "ID 40", "Gen 44", "LSA0 48", "size 56"},
		"WindowInfo":   {"Gen 0", "Multimem 8", "size 64"},
		"WindowPeer":   {"Size 0", "Base 8", "size 16"},
	}
	for _, v := range []any{abi.DevComm{}, abi.Producer{}, abi.QP{}, abi.Index{}, abi.BarrierState{}, abi.LLState{}, abi.Control{}, abi.Notes{}, abi.Record{}, abi.Window{}, abi.SignalWindow{}, abi.WindowInfo{}, abi.WindowPeer{}} {
		rt := reflect.TypeOf(v)
		var got []string
		for i := range rt.NumField() {
			if f := rt.Field(i); f.Name != "_" {
				got = append(got, fmt.Sprintf("%s %d", f.Name, f.Offset))
			}
		}
		got = append(got, fmt.Sprintf("size %d", rt.Size()))
		if fmt.Sprint(got) != fmt.Sprint(golden[rt.Name()]) {
			t.Errorf("%s:\ngot  %q\nwant %q", rt.Name(), got, golden[rt.Name()])
		}
	}
}
