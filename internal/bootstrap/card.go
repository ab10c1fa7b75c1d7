// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// card is what a rank tells of itself when ranks meet by TCP: where it listens.
type card struct {
	bootID string
	unix   string       // name of its abstract socket, empty: none
	port   uint16       // of its TCP listener
	addrs  []netip.Addr // where to try it, best first
	others []netip.Addr // further ones that it may come from
}

// On the wire, little endian: port u16, length u8 and bytes of boot id, of socket name; count u8 of addrs, of others;
// then each address: length u8 (4 or 16) and bytes. A table is a count u32, then for each rank a length u16 and a card.
const (
	maxCardBytes = 4096
	maxCardText  = 108
	maxCardAddrs = 100 // of either kind
)

// trim keeps what a card can hold, and of each address one.
func (c *card) trim() {
	seen := map[netip.Addr]bool{}
	keep := func(in []netip.Addr) (out []netip.Addr) {
		for _, a := range in {
			if a = a.Unmap().WithZone(""); a.IsValid() && !seen[a] && len(out) < maxCardAddrs {
				seen[a] = true
				out = append(out, a)
			}
		}
		return out
	}
	c.addrs = keep(c.addrs)
	c.others = keep(c.others)
}

func appendCard(b []byte, c *card) ([]byte, error) {
	if len(c.bootID) > maxCardText || len(c.unix) > maxCardText || len(c.addrs) > maxCardAddrs || len(c.others) > maxCardAddrs {
		return b, fmt.Errorf("bad card: texts of %d and %d bytes, %d and %d addresses, accepted is at most %d and %d", len(c.bootID), len(c.unix), len(c.addrs), len(c.others), maxCardText, maxCardAddrs)
	}
	b = binary.LittleEndian.AppendUint16(b, c.port)
	b = append(append(b, byte(len(c.bootID))), c.bootID...)
	b = append(append(b, byte(len(c.unix))), c.unix...)
	b = append(b, byte(len(c.addrs)), byte(len(c.others)))
	for _, list := range [][]netip.Addr{c.addrs, c.others} {
		for _, a := range list {
			raw := a.AsSlice()
			b = append(append(b, byte(len(raw))), raw...)
		}
	}
	return b, nil
}

// decodeCard accepts exactly what appendCard makes.
func decodeCard(b []byte) (card, error) {
	short := false
	take := func(n int) []byte {
		if n > len(b) {
			short, n = true, len(b)
		}
		out := b[:n]
		b = b[n:]
		return out
	}
	one := func() int {
		if x := take(1); len(x) == 1 {
			return int(x[0])
		}
		return 0
	}
	text := func() string {
		n := one()
		if n > maxCardText {
			short = true
			return ""
		}
		return string(take(n))
	}
	var c card
	if p := take(2); len(p) == 2 {
		c.port = binary.LittleEndian.Uint16(p)
	}
	c.bootID, c.unix = text(), text()
	na, no := one(), one()
	if short || na > maxCardAddrs || no > maxCardAddrs {
		return card{}, fmt.Errorf("bad card: cut short, or a text or list too long (%d, %d addresses, accepted is at most %d)", na, no, maxCardAddrs)
	}
	for i := range na + no {
		a, ok := netip.AddrFromSlice(take(one()))
		if !ok || short || a.Is4In6() {
			return card{}, fmt.Errorf("bad card: address %d is none", i)
		}
		if i < na {
			c.addrs = append(c.addrs, a)
		} else {
			c.others = append(c.others, a)
		}
	}
	if len(b) != 0 {
		return card{}, fmt.Errorf("bad card: %d bytes too many", len(b))
	}
	return c, nil
}

func appendTable(b []byte, cards []card) ([]byte, error) {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(cards)))
	for i := range cards {
		at := len(b)
		var err error
		if b, err = appendCard(append(b, 0, 0), &cards[i]); err != nil {
			return b, err
		}
		binary.LittleEndian.PutUint16(b[at:], uint16(len(b)-at-2))
	}
	if len(b) > MaxBytes {
		return b, fmt.Errorf("bad table: %d bytes for %d ranks, accepted is at most %d: have ranks offer fewer interfaces", len(b), len(cards), MaxBytes)
	}
	return b, nil
}

func decodeTable(b []byte, size int) ([]card, error) {
	if len(b) < 4 || binary.LittleEndian.Uint32(b) != uint32(size) {
		return nil, fmt.Errorf("bad table: %d bytes that do not begin with %d ranks", len(b), size)
	}
	b = b[4:]
	cards := make([]card, 0, min(size, len(b)/8))
	for r := range size {
		if len(b) < 2 || len(b)-2 < int(binary.LittleEndian.Uint16(b)) {
			return nil, fmt.Errorf("bad table: ends in rank %d of %d", r, size)
		}
		n := int(binary.LittleEndian.Uint16(b))
		c, err := decodeCard(b[2 : 2+n])
		if err != nil {
			return nil, fmt.Errorf("bad table: rank %d: %w", r, err)
		}
		cards = append(cards, c)
		b = b[2+n:]
	}
	if len(b) != 0 {
		return nil, fmt.Errorf("bad table: %d bytes too many", len(b))
	}
	return cards, nil
}
