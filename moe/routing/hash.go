// SPDX-License-Identifier: Apache-2.0

package routing

import "math/bits"

// golden is 2^64 divided by the golden ratio, made odd: the step of a Weyl sequence that visits every 64-bit value.
const golden = 0x9e3779b97f4a7c15

// mix is a bijection of 64-bit words in which each input bit flips each output bit with probability near 1/2: Stafford's
// thirteenth variant of the MurmurHash3 finalizer, as SplitMix64 uses it.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// fold hashes one more word into a key.
func fold(key, word uint64) uint64 { return mix(mix(key+golden) ^ word) }

// rng is the SplitMix64 generator. Streams of different keys are independent for our purposes.
type rng struct{ state uint64 }

func (g *rng) next() uint64 {
	g.state += golden
	return mix(g.state)
}

// below returns a value in 0..n-1, n > 0. The bias is under n/2^64.
func (g *rng) below(n uint64) uint64 {
	hi, _ := bits.Mul64(g.next(), n)
	return hi
}

// float returns a value in [0, 1).
func (g *rng) float() float64 { return float64(g.next()>>11) / (1 << 53) }
