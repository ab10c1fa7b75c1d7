// SPDX-License-Identifier: Apache-2.0

package shm_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/shm"
)

// FuzzPost posts whatever the bytes say: nothing panics, and no byte outside the regions changes, nor one inside by an
// operation that fails.
func FuzzPost(f *testing.F) {
	seed := func(ops ...netplugin.Op) {
		var b []byte
		for _, op := range ops {
			b = encodeOp(b, &op)
		}
		f.Add(b)
	}
	seed()
	seed(netplugin.Op{Kind: netplugin.Put, Raise: true, Dst: 1, Data: make([]byte, 40), SigDst: 2, SigOff: 8, SigAdd: 3})
	seed(netplugin.Op{Kind: netplugin.Get, Dst: 1, DstOff: 1<<64 - 8, Data: make([]byte, 16)})
	seed(netplugin.Op{Kind: netplugin.Signal, Raise: true, SigDst: 3, SigOff: 12}, netplugin.Op{Kind: netplugin.Put, Dst: -1, Data: make([]byte, 1)})
	seed(netplugin.Op{Kind: 0, Dst: 2, Data: make([]byte, 8)}, netplugin.Op{Kind: netplugin.Put, Dst: 1, DstOff: 150, Data: make([]byte, 50)})
	seed(netplugin.Op{Kind: netplugin.Signal, Raise: true, SigDst: 2, SigOff: 1<<64 - 8})
	f.Fuzz(func(t *testing.T, in []byte) {
		e, err := shm.Plugin{}.Open(netplugin.Config{Rank: 0, Ranks: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		// Regions 1, 2 and 3: a window of odd size, signals, and one that starts at an odd address.
		const guard = 256
		all := bytes.Repeat([]byte{0x5a}, 3*guard+200+64+33)
		spans := [][2]int{{guard, guard + 200}, {2*guard + 200, 2*guard + 264}, {3*guard + 263, 3*guard + 263 + 33}}
		for i, s := range spans {
			r, err := e.Import(1, netplugin.Key{Map: all[s[0]:s[1]], Size: s[1] - s[0]})
			if err != nil || r != netplugin.Region(i+1) {
				t.Fatalf("import: region %d, error %v", r, err)
			}
		}
		guards := [][]byte{all[:spans[0][0]], all[spans[0][1]:spans[1][0]], all[spans[1][1]:spans[2][0]], all[spans[2][1]:]}
		for n := 0; n < 16 && len(in) >= opBytes; n++ {
			ops := make([]netplugin.Op, 1)
			ops[0], in = decodeOp(in)
			before, data := bytes.Clone(all), bytes.Clone(ops[0].Data)
			if n := e.Post(ops); n != 1 || ops[0].State != netplugin.Done && ops[0].State != netplugin.Failed {
				t.Fatalf("Post took %d, state %d", n, ops[0].State)
			}
			if ops[0].Kind != netplugin.Get && !bytes.Equal(data, ops[0].Data) {
				t.Fatalf("kind %d changed its Data", ops[0].Kind)
			}
			if ops[0].State == netplugin.Failed && (!bytes.Equal(before, all) || !bytes.Equal(data, ops[0].Data) || ops[0].Err == nil) {
				t.Fatalf("an operation that failed (%v) changed memory", ops[0].Err)
			}
			for i, g := range guards {
				if len(bytes.Trim(g, "\x5a")) != 0 {
					t.Fatalf("%+v wrote outside of the regions, in guard %d of %d", ops[0], i, len(guards))
				}
			}
		}
	})
}

const opBytes = 1 + 1 + 1 + 1 + 1 + 3*8

// decodeOp is an operation out of the first bytes of in. Regions are small numbers, so that most are there.
func decodeOp(in []byte) (netplugin.Op, []byte) {
	le := binary.LittleEndian
	op := netplugin.Op{
		Kind: netplugin.Kind(in[0]), Raise: in[1]&1 != 0, Peer: 1, Dst: netplugin.Region(int8(in[2])),
		SigDst: netplugin.Region(int8(in[3])), Data: bytes.Repeat([]byte{0xc3}, int(in[4])),
		DstOff: le.Uint64(in[5:]), SigOff: le.Uint64(in[13:]), SigAdd: le.Uint64(in[21:]),
	}
	return op, in[opBytes:]
}

func encodeOp(b []byte, op *netplugin.Op) []byte {
	raise := byte(0)
	if op.Raise {
		raise = 1
	}
	b = append(b, byte(op.Kind), raise, byte(op.Dst), byte(op.SigDst), byte(len(op.Data)))
	le := binary.LittleEndian
	return le.AppendUint64(le.AppendUint64(le.AppendUint64(b, op.DstOff), op.SigOff), op.SigAdd)
}
