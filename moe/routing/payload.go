// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"encoding/binary"

	"github.com/doorbell-net/doorbell/internal/num"
)

// Tagged payloads. Element j of token t of rank s is an integer in [-128, 127], exact in BF16, that follows from
// (seed, iteration, s, t, j) by a hash: one 64-bit hash gives 8 elements. So a row that is torn, stale, swapped or
// shifted differs in almost every element from the row that belongs there, and the receiver needs no copy to know it.
//
// All functions here are pure, allocate nothing and may be called from many goroutines.

// Eight consecutive elements share one hash, element 8b in its low byte.
const perHash = 8

// bf16OfByte maps a byte, taken as a signed integer, to its BF16 bits.
var bf16OfByte = func() (tab [256]uint16) {
	for i := range tab {
		tab[i] = num.F32ToBF16(float32(int8(i)))
	}
	return tab
}()

// RowKey returns the key of token t of rank s in one iteration: what the elements of its row are derived from.
func RowKey(seed, iteration uint64, s, t int) uint64 {
	return fold(fold(fold(seed, iteration), uint64(s)), uint64(t))
}

// Element returns the BF16 bits of element j of the row with this key; j is not negative.
func Element(key uint64, j int) uint16 {
	h := mix(key + uint64(j/perHash+1)*golden)
	return bf16OfByte[byte(h>>(j%perHash*8))]
}

// FillRow writes the row with this key to dst, from element 0 on. Any length is accepted.
func FillRow(dst []uint16, key uint64) {
	for len(dst) >= perHash {
		key += golden
		h := mix(key)
		d := dst[:8:8] // one bounds check for eight stores
		d[0] = bf16OfByte[byte(h)]
		d[1] = bf16OfByte[byte(h>>8)]
		d[2] = bf16OfByte[byte(h>>16)]
		d[3] = bf16OfByte[byte(h>>24)]
		d[4] = bf16OfByte[byte(h>>32)]
		d[5] = bf16OfByte[byte(h>>40)]
		d[6] = bf16OfByte[byte(h>>48)]
		d[7] = bf16OfByte[byte(h>>56)]
		dst = dst[8:]
	}
	h := mix(key + golden)
	for i := range dst {
		dst[i] = bf16OfByte[byte(h>>(i*8))]
	}
}

// CheckRow returns the index of the first element of row that is not the one of the row with this key, or -1.
func CheckRow(row []uint16, key uint64) int {
	n := len(row)
	for len(row) >= perHash {
		h := mix(key + golden)
		r := row[:8:8]
		wrong := r[0] ^ bf16OfByte[byte(h)]
		wrong |= r[1] ^ bf16OfByte[byte(h>>8)]
		wrong |= r[2] ^ bf16OfByte[byte(h>>16)]
		wrong |= r[3] ^ bf16OfByte[byte(h>>24)]
		wrong |= r[4] ^ bf16OfByte[byte(h>>32)]
		wrong |= r[5] ^ bf16OfByte[byte(h>>40)]
		wrong |= r[6] ^ bf16OfByte[byte(h>>48)]
		wrong |= r[7] ^ bf16OfByte[byte(h>>56)]
		if wrong != 0 {
			break
		}
		key += golden
		row = row[8:]
	}
	// What is left is the tail of the row, or begins with 8 elements of which one is wrong.
	h := mix(key + golden)
	for i, v := range row {
		if v != bf16OfByte[byte(h>>(i*8))] {
			return n - len(row) + i
		}
	}
	return -1
}

// FillRowBytes is FillRow into memory seen as bytes, two an element, low byte first. It panics if len(dst) is odd.
func FillRowBytes(dst []byte, key uint64) {
	mustBeEven(len(dst))
	for len(dst) >= 2*perHash {
		key += golden
		h := mix(key)
		d := dst[:16:16]
		binary.LittleEndian.PutUint16(d, bf16OfByte[byte(h)])
		binary.LittleEndian.PutUint16(d[2:], bf16OfByte[byte(h>>8)])
		binary.LittleEndian.PutUint16(d[4:], bf16OfByte[byte(h>>16)])
		binary.LittleEndian.PutUint16(d[6:], bf16OfByte[byte(h>>24)])
		binary.LittleEndian.PutUint16(d[8:], bf16OfByte[byte(h>>32)])
		binary.LittleEndian.PutUint16(d[10:], bf16OfByte[byte(h>>40)])
		binary.LittleEndian.PutUint16(d[12:], bf16OfByte[byte(h>>48)])
		binary.LittleEndian.PutUint16(d[14:], bf16OfByte[byte(h>>56)])
		dst = dst[16:]
	}
	h := mix(key + golden)
	for ; len(dst) > 0; dst = dst[2:] {
		binary.LittleEndian.PutUint16(dst, bf16OfByte[byte(h)])
		h >>= 8
	}
}

// CheckRowBytes is CheckRow over memory seen as bytes; it returns the index of the element, not of the byte, or -1.
// It panics if len(row) is odd.
func CheckRowBytes(row []byte, key uint64) int {
	mustBeEven(len(row))
	n := len(row)
	for len(row) >= 2*perHash {
		h := mix(key + golden)
		r := row[:16:16]
		wrong := binary.LittleEndian.Uint16(r) ^ bf16OfByte[byte(h)]
		wrong |= binary.LittleEndian.Uint16(r[2:]) ^ bf16OfByte[byte(h>>8)]
		wrong |= binary.LittleEndian.Uint16(r[4:]) ^ bf16OfByte[byte(h>>16)]
		wrong |= binary.LittleEndian.Uint16(r[6:]) ^ bf16OfByte[byte(h>>24)]
		wrong |= binary.LittleEndian.Uint16(r[8:]) ^ bf16OfByte[byte(h>>32)]
		wrong |= binary.LittleEndian.Uint16(r[10:]) ^ bf16OfByte[byte(h>>40)]
		wrong |= binary.LittleEndian.Uint16(r[12:]) ^ bf16OfByte[byte(h>>48)]
		wrong |= binary.LittleEndian.Uint16(r[14:]) ^ bf16OfByte[byte(h>>56)]
		if wrong != 0 {
			break
		}
		key += golden
		row = row[16:]
	}
	h := mix(key + golden)
	for i := 0; i < len(row); i += 2 {
		if binary.LittleEndian.Uint16(row[i:]) != bf16OfByte[byte(h>>(i*4))] {
			return (n - len(row) + i) / 2
		}
	}
	return -1
}

func mustBeEven(n int) {
	if n%2 != 0 {
		panic("routing: odd number of bytes in a BF16 row")
	}
}

// FillTokens writes the rows of tokens 0, 1, ... of rank s to dst, hidden elements each. It panics if len(dst) is not a
// multiple of hidden.
func FillTokens(dst []uint16, seed, iteration uint64, s, hidden int) {
	for t := 0; len(dst) > 0; t++ {
		FillRow(dst[:hidden], RowKey(seed, iteration, s, t))
		dst = dst[hidden:]
	}
}
