// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/netplugin/plugintest"
)

func TestConformance(t *testing.T) {
	plugintest.Run(t, func(testing.TB) plugintest.Harness { return plugintest.Harness{Plugin: Plugin{}} })
}

func drawHeader(t *rapid.T) header {
	h := header{
		kind: uint8(rapid.IntRange(1, kindMost).Draw(t, "kind")), epoch: rapid.Uint32().Draw(t, "epoch"), seq: rapid.Uint64Min(1).Draw(t, "seq"),
		ack: rapid.Uint64().Draw(t, "ack"), off: rapid.Uint64().Draw(t, "off"), region: rapid.Uint32().Draw(t, "region"),
		sigRegion: rapid.Uint32().Draw(t, "signal region"), context: rapid.Uint32().Draw(t, "context"),
		sigOff: rapid.Uint64().Draw(t, "signal offset"), sigAdd: rapid.Uint64().Draw(t, "add"),
	}
	switch h.kind {
	case kindPut, kindGet, kindReply:
		h.length = uint32(rapid.IntRange(0, MaxBytes).Draw(t, "length"))
		h.flags = uint8(rapid.IntRange(0, flagSignal).Draw(t, "flags"))
	case kindAck, kindBye:
		h.seq = 0
	}
	return h
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHeader(t)
		var b [headerBytes]byte
		h.encode(&b)
		var got header
		if err := got.decode(&b); err != nil || got != h {
			t.Fatalf("got %+v, %v; want %+v", got, err, h)
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add(make([]byte, headerBytes))
	var b [headerBytes]byte
	(&header{kind: kindPut, seq: 1, length: 8}).encode(&b)
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, in []byte) {
		var b, again [headerBytes]byte
		copy(b[:], in)
		var h header
		if h.decode(&b) != nil {
			return
		}
		if h.payload() < 0 || h.payload() > MaxBytes {
			t.Fatalf("accepted a payload of %d bytes", h.payload())
		}
		h.encode(&again)
		if again != b {
			t.Fatalf("decoded %x, encoded %x", b, again)
		}
	})
}
