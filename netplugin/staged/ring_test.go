// SPDX-License-Identifier: Apache-2.0

package staged

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/plugintest"
)

func drawHeader(t *rapid.T) header {
	h := header{
		kind: uint8(rapid.IntRange(1, kindMost).Draw(t, "kind")), length: uint32(rapid.IntRange(0, MaxBytes).Draw(t, "length")),
		region: rapid.Uint32().Draw(t, "region"), sigRegion: rapid.Uint32().Draw(t, "signal region"), off: rapid.Uint64().Draw(t, "offset"),
		sigOff: rapid.Uint64().Draw(t, "signal offset"), sigAdd: rapid.Uint64().Draw(t, "add"), token: rapid.Uint64().Draw(t, "token"),
		context: rapid.Uint32().Draw(t, "context"), seq: rapid.Uint64().Draw(t, "sequence"),
	}
	h.raise = h.kind == kindPut && rapid.Bool().Draw(t, "raise")
	if h.kind == kindRefusal {
		h.length = 0
	}
	return h
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHeader(t)
		var b [recordBytes]byte
		h.encode(b[:])
		var got header
		if err := got.decode(b[:]); err != nil || got != h {
			t.Fatalf("got %+v, %v; want %+v", got, err, h)
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add(make([]byte, recordBytes))
	var b [recordBytes]byte
	(&header{kind: kindPut, length: 8, raise: true, seq: 1}).encode(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, in []byte) {
		var b, again [recordBytes]byte
		copy(b[:], in)
		var h header
		if err := h.decode(b[:]); err != nil {
			if !errors.Is(err, errRecord) {
				t.Fatalf("refused by %v", err)
			}
			return
		}
		if h.encode(again[:]); again != b {
			t.Fatalf("decoded %x, encoded %x", b, again)
		}
	})
}

func FuzzAddress(f *testing.F) {
	f.Add(joinParts([3][]byte{[]byte("here"), []byte("rings!"), {}}))
	f.Fuzz(func(t *testing.T, in []byte) {
		if parts, err := cutParts(in); err == nil && !bytes.Equal(joinParts(parts), in) {
			t.Fatalf("%x was cut to %x", in, parts)
		}
	})
}

// nowhere is a network whose operations end and do nothing.
type nowhere struct {
	netplugin.Endpoint
	over *error // why the other rank has ended
}

func (n nowhere) Ended(int, int32) error { return *n.over }

func (nowhere) Name() string { return "nowhere" }
func (nowhere) Powers() netplugin.Powers {
	return netplugin.Powers{Ordered: true, MaxBytes: 1 << 20}
}
func (n nowhere) Open(netplugin.Config) (netplugin.Endpoint, error) { return n, nil }
func (nowhere) Export([]byte, bool) ([]byte, error)                 { return nil, nil }
func (nowhere) Import(int, netplugin.Key) (netplugin.Region, error) { return 1, nil }
func (nowhere) Poll([]netplugin.Completion) int                     { return 0 }
func (nowhere) Close() error                                        { return nil }
func (nowhere) Post(ops []netplugin.Op) int {
	for i := range ops {
		ops[i].State = netplugin.Done
	}
	return len(ops)
}

// alone is rank 0 of two, of which the other is what the test writes into rings and words.
func alone(t testing.TB) (e *endpoint) {
	t.Helper()
	on := &plugintest.OnDevice{Plugin: opened{wrap(t, nowhere{over: new(error)}), &e}}
	ep, err := on.Open(netplugin.Config{Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close() })
	if err := e.Connect(t.Context(), [][]byte{e.Address(), e.Address()}); err != nil {
		t.Fatal(err)
	}
	return e
}

// opened keeps the endpoint that it opens.
type opened struct {
	netplugin.Plugin
	at **endpoint
}

func (o opened) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	ep, err := o.Plugin.Open(c)
	if err == nil {
		*o.at = ep.(*endpoint)
	}
	return ep, err
}

func (e *endpoint) ring(peer, kind int, bell uint64) {
	gpu.Store(gpu.Cast[uint64](gpu.PtrOf(e.words).Byte(e.bellAt(peer, kind))), bell, gpu.Release, gpu.ScopeSys)
}

// TestHostilePeer: what no rank of ours would write ends the use of the peer, and touches nothing.
func TestHostilePeer(t *testing.T) {
	put := header{kind: kindPut, region: 1, length: 8}
	for name, c := range map[string]struct {
		kind int
		h    header
		bell uint64
	}{
		"bell past the ring":         {requests, put, ringBytes + recordBytes},
		"bell between records":       {requests, put, 100},
		"no kind":                    {requests, header{}, recordBytes},
		"too large":                  {requests, header{kind: kindPut, length: MaxBytes + 1}, ringBytes},
		"pad past the end":           {requests, header{kind: kindPad, length: ringBytes}, ringBytes},
		"answer among requests":      {requests, header{kind: kindReply}, recordBytes},
		"request among answers":      {answers, put, 2 * recordBytes},
		"reply that nobody asked":    {answers, header{kind: kindReply, token: 1 << 32}, recordBytes},
		"reply to no get":            {answers, header{kind: kindReply, token: depth}, recordBytes},
		"refusal of what never went": {answers, header{kind: kindRefusal, seq: 1}, recordBytes},
	} {
		t.Run(name, func(t *testing.T) {
			e := alone(t)
			mem := make([]byte, 64)
			if _, err := e.Export(mem, false); err != nil {
				t.Fatal(err)
			}
			in := &e.peers[1].in[c.kind]
			c.h.encode(in.ring)
			in.ring[recordBytes] = 1
			e.ring(1, c.kind, c.bell)
			e.Poll(nil)
			if err := e.peers[1].lost; !errors.Is(err, errRecord) || !bytes.Equal(mem, make([]byte, 64)) {
				t.Errorf("lost by %v, memory holds %x", err, mem)
			}
		})
	}
	e := alone(t)
	binary.LittleEndian.PutUint64(e.words[e.creditAt(1, requests):], 64)
	if e.Poll(nil); !errors.Is(e.peers[1].lost, errRecord) {
		t.Errorf("credit for what was not sent: lost by %v", e.peers[1].lost)
	}
}

// FuzzRing: whatever a peer writes into its rings, memory that is not exported stays as it is.
func FuzzRing(f *testing.F) {
	var b [4 * recordBytes]byte
	(&header{kind: kindPut, region: 1, length: 8, raise: true, sigRegion: 2, sigOff: 8, sigAdd: 1}).encode(b[:])
	(&header{kind: kindGet, region: 1, length: 8, off: 60}).encode(b[2*recordBytes:])
	f.Add(b[:], uint8(4), uint8(requests))
	f.Fuzz(func(t *testing.T, in []byte, records, kind uint8) {
		e := alone(t)
		all := make([]uint64, 64)
		mem := gpu.Slice(gpu.Cast[byte](gpu.PtrTo(&all[0])), 512)
		for _, r := range []struct {
			mem     []byte
			signals bool
		}{{mem[128:192], false}, {mem[256:320], true}} {
			if _, err := e.Export(r.mem, r.signals); err != nil {
				t.Fatal(err)
			}
		}
		k := int(kind % kinds)
		copy(e.peers[1].in[k].ring, in)
		e.ring(1, k, uint64(records)*recordBytes)
		for range 3 {
			e.Poll(nil)
		}
		for i, v := range mem {
			if v != 0 && !(i >= 128 && i < 192 || i >= 256 && i < 320) {
				t.Fatalf("byte %d was written", i)
			}
		}
	})
}

// TestBackPressure: with a peer that takes nothing, Post says "again" before anything is overwritten, of records and of
// payloads on their way to the mirror alike.
func TestBackPressure(t *testing.T) {
	for name, c := range map[string]struct{ bytes, most int }{"signals": {0, maxRecords}, "payloads": {512, depth}, "a ring": {MaxBytes, ringBytes / (MaxBytes + recordBytes)}} {
		t.Run(name, func(t *testing.T) {
			e := alone(t)
			r, err := e.Import(1, netplugin.Key{Bytes: binary.LittleEndian.AppendUint32(nil, 1), Size: MaxBytes})
			if err != nil {
				t.Fatal(err)
			}
			src := make([]byte, MaxBytes)
			took := 0
			for ; took <= 2*maxRecords; took++ {
				op := []netplugin.Op{{Kind: netplugin.Put, Peer: 1, Dst: r, Src: gpu.PtrOf(src), Bytes: c.bytes}}
				if e.Post(op) == 0 {
					break
				}
				if op[0].State == netplugin.Failed {
					t.Fatal(op[0].Err)
				}
			}
			if took != c.most {
				t.Errorf("%d operations were taken, want %d", took, c.most)
			}
		})
	}
}
