// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

var sampleCards = []card{
	{},
	{bootID: "b7e0", unix: "@doorbell.0011.1", port: 29500, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::7")}, others: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
}

func TestCardGolden(t *testing.T) {
	var lines []string
	for i := range sampleCards {
		b, err := appendCard(nil, &sampleCards[i])
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, "card "+hex.EncodeToString(b))
		if got, err := decodeCard(b); err != nil || !reflect.DeepEqual(got, sampleCards[i]) {
			t.Errorf("%+v, %v", got, err)
		}
		for cut := range b {
			if _, err := decodeCard(b[:cut]); err == nil {
				t.Errorf("cut at %d was taken", cut)
			}
		}
	}
	b, err := appendTable(nil, sampleCards)
	if err != nil {
		t.Fatal(err)
	}
	lines = append(lines, "table "+hex.EncodeToString(b))
	if got, err := decodeTable(b, 2); err != nil || !reflect.DeepEqual(got, sampleCards) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := decodeTable(b, 3); err == nil {
		t.Error("table of another size")
	}
	for _, m := range sampleMessages {
		lines = append(lines, m.String()+" "+hex.EncodeToString(appendMessage(nil, &m)))
	}
	golden(t, "testdata/meeting.golden", lines)
}

func TestCardBounds(t *testing.T) {
	c := card{}
	for i := range 300 {
		c.addrs = append(c.addrs, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), netip.MustParseAddr("::ffff:10.0.0.1"))
	}
	if _, err := appendCard(nil, &c); err == nil {
		t.Error("too many addresses")
	}
	c.trim()
	c.bootID, c.unix, c.others = strings.Repeat("b", maxCardText), strings.Repeat("u", maxCardText), make([]netip.Addr, maxCardAddrs)
	for i := range c.others {
		c.others[i] = netip.MustParseAddr("fd00::1")
	}
	b, err := appendCard(nil, &c)
	if err != nil || len(b) > maxCardBytes || len(c.addrs) != maxCardAddrs {
		t.Errorf("%d bytes, %d addresses, %v", len(b), len(c.addrs), err)
	}
}

func FuzzCard(f *testing.F) {
	for i := range sampleCards {
		b, _ := appendCard(nil, &sampleCards[i])
		f.Add(b)
	}
	b, _ := appendTable(nil, sampleCards)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := decodeCard(b); err == nil {
			if again, err := appendCard(nil, &c); err != nil || !bytes.Equal(again, b) {
				t.Fatalf("%+v encodes to %x (%v), came as %x", c, again, err, b)
			}
		}
		if cs, err := decodeTable(b, 2); err == nil {
			if again, err := appendTable(nil, cs); err != nil || !bytes.Equal(again, b) {
				t.Fatalf("%+v encodes to %x (%v), came as %x", cs, again, err, b)
			}
		}
	})
}

func setOf(size int, r ...int) rankSet {
	s := newRankSet(size)
	for _, x := range r {
		s.add(x)
	}
	return s
}

var sampleMessages = []message{
	{kind: msgRow, epoch: 1, row: row{suspect: setOf(3, 1), ended: setOf(3), left: setOf(3, 2), unwanted: setOf(3, 0, 2)}},
	{kind: msgPrepare, ballot: ballot(0).next(2)},
	{kind: msgPromise, ballot: 1 << 16, row: row{suspect: setOf(3), ended: setOf(3, 0), left: setOf(3), unwanted: setOf(3)}},
	{kind: msgPromise, ballot: 2 << 16, accepted: 1 << 16, row: row{suspect: setOf(3), ended: setOf(3, 0), left: setOf(3), unwanted: setOf(3)}, verdict: verdict{set: setOf(3, 1, 2), left: setOf(3)}},
	{kind: msgAccept, ballot: 1 << 16, verdict: verdict{set: setOf(3, 1, 2), left: setOf(3)}},
	{kind: msgAccepted, ballot: 1 << 16},
	{kind: msgDecided, epoch: 7, verdict: verdict{set: setOf(3, 0), left: setOf(3, 1)}},
	{kind: msgDecided, epoch: 7, verdict: verdict{set: setOf(3, 0), left: setOf(3, 1), agreed: true}},
	{kind: msgRow, epoch: 2, row: row{suspect: setOf(3), ended: setOf(3), left: setOf(3), unwanted: setOf(3), asks: true}},
	{kind: msgPromise, ballot: 2 << 16, accepted: 1 << 16, row: row{suspect: setOf(3), ended: setOf(3), left: setOf(3), unwanted: setOf(3), asks: true}, verdict: verdict{set: setOf(3, 1, 2), left: setOf(3), agreed: true}},
	{kind: msgStop, text: "cut off"},
}

func FuzzMember(f *testing.F) {
	for _, m := range sampleMessages {
		b := appendMessage(nil, &m)
		if got, err := decodeMessage(b, 3); err != nil || !reflect.DeepEqual(got, m) {
			f.Errorf("%s: %s, %v", m, got, err)
		}
		f.Add(b, uint8(0), uint8(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, rank, from uint8) {
		m, err := decodeMessage(b, 3)
		if err != nil {
			return
		}
		if again := appendMessage(nil, &m); !bytes.Equal(again, b) {
			t.Fatalf("%s encodes to %x, came as %x", m, again, b)
		}
		// Whatever a rank sends, the machine does not fall over.
		x := newMember(int(rank%3), 3, simLimit, simPeriod)
		x.receive(int(from%3), m)
		if q := int(from+1) % 3; q != x.rank { // nobody sees its own end
			x.ended(q)
		}
		x.receive(int(from%3), m)
		x.tick(simPeriod)
		x.take()
	})
}
