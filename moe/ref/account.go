// SPDX-License-Identifier: Apache-2.0

package ref

import "github.com/doorbell-net/doorbell/moe"

// HeaderBytes is the size of the header that a dispatch message carries in front of its payload.
const HeaderBytes = 16

// PayloadBytes returns the bytes of one BF16 token, as an answer has it: 2*hidden.
func PayloadBytes(hidden int) int64 { return 2 * int64(hidden) }

// MessageBytes returns the bytes of one dispatch message as the published figures count them: elements, scales of 4 bytes,
// header. What is truly sent, with the token's selections, is moe.Options.MessageBytes.
func MessageBytes(f moe.Format, hidden int) int64 {
	if f == moe.BF16 {
		return PayloadBytes(hidden) + HeaderBytes
	}
	return int64(hidden) + 4*int64((hidden+group-1)/group) + HeaderBytes
}

// HTRowBytes returns the bytes of a dispatched token as the published figures of the high-throughput form count them: a BF16
// row; of FP8 half of one and a scale of 4 bytes for 128 elements, in that proportion whatever hidden is.
func HTRowBytes(f moe.Format, hidden int) int64 {
	if f == moe.BF16 {
		return PayloadBytes(hidden)
	}
	return int64(hidden) + int64(hidden)*4/group
}

// Account is what one rank does in one LL dispatch and one LL combine. Logical bytes count every selection of this rank
// as a source, its own experts included, and neither signals nor counts: the definition of DeepEP's low-latency test.
// Puts and signals count what this rank issues, to itself included.
type Account struct {
	Valid    int64 // selections of this rank that are not -1
	Received int64 // rows that this rank's experts receive, from all ranks

	DispatchMessageBytes int64 // logical, with headers: Valid * (2*Hidden + 16)
	DispatchPayloadBytes int64 // logical, without headers: Valid * 2*Hidden
	CombineBytes         int64 // logical: Valid * 2*Hidden, what comes back to this rank

	DispatchPuts    int64 // one per selection: Valid
	DispatchSignals int64 // one per expert of the world, zero tokens or not: Experts
	CombinePuts     int64 // one per received row: Received
	CombineSignals  int64 // one per (local expert, destination rank), zero rows or not: LocalExperts * Ranks
}

// AccountOf returns the account of rank r. p must be valid.
func AccountOf(p *Problem, r int) Account {
	c := Counts(p)
	var a Account
	for e := 0; e < p.Experts; e++ {
		a.Valid += c[r][e]
		for s := 0; s < p.Ranks; s++ {
			if p.Owner(e) == r {
				a.Received += c[s][e]
			}
		}
	}
	a.DispatchMessageBytes = a.Valid * MessageBytes(moe.BF16, p.Hidden)
	a.DispatchPayloadBytes = a.Valid * PayloadBytes(p.Hidden)
	a.CombineBytes = a.Valid * PayloadBytes(p.Hidden)
	a.DispatchPuts = a.Valid
	a.DispatchSignals = int64(p.Experts)
	a.CombinePuts = a.Received
	a.CombineSignals = int64(p.LocalExperts(r)) * int64(p.Ranks)
	return a
}

// Counts returns how many selections of each rank name each expert: [source rank][global expert]. p must be valid.
func Counts(p *Problem) [][]int64 {
	c := make([][]int64, p.Ranks)
	for s := range c {
		c[s] = make([]int64, p.Experts)
		for _, e := range p.Idx[s] {
			if e >= 0 {
				c[s][e]++
			}
		}
	}
	return c
}

// Traffic returns how many selections of each rank go to experts of each rank: [source rank][owner]. p must be valid.
// A bench splits its bytes by transport with it: the diagonal stays local.
func Traffic(p *Problem) [][]int64 {
	c := Counts(p)
	m := make([][]int64, p.Ranks)
	for s := range m {
		m[s] = make([]int64, p.Ranks)
		for e, n := range c[s] {
			m[s][p.Owner(e)] += n
		}
	}
	return m
}

// RankTraffic returns how many tokens of each rank have a selection on each rank: [source rank][owner]. It is what is sent
// where a token goes once to a rank. p must be valid.
func RankTraffic(p *Problem) [][]int64 {
	m := make([][]int64, p.Ranks)
	for s := range m {
		m[s] = make([]int64, p.Ranks)
		for i := 0; i < len(p.Idx[s]); i += p.TopK {
			here := make(map[int]bool, p.TopK)
			for _, e := range p.Idx[s][i : i+p.TopK] {
				if e >= 0 && !here[p.Owner(int(e))] {
					here[p.Owner(int(e))] = true
					m[s][p.Owner(int(e))]++
				}
			}
		}
	}
	return m
}

// Paths is how many messages, or bytes of them, take each way.
type Paths struct {
	Own     int64 // to the rank itself
	LSA     int64 // stored into windows of another rank of the node
	Network int64 // put to another rank
}

// PathsOf splits a traffic, [source rank][target]. Ranks of a node are lsaSize ranks one after the other; 1 is for a
// world in which nobody stores.
func PathsOf(traffic [][]int64, lsaSize int) (p Paths) {
	for s := range traffic {
		for r, n := range traffic[s] {
			switch {
			case r == s:
				p.Own += n
			case r/lsaSize == s/lsaSize:
				p.LSA += n
			default:
				p.Network += n
			}
		}
	}
	return p
}

// Times returns the paths of so many bytes each.
func (p Paths) Times(bytes int64) Paths {
	return Paths{p.Own * bytes, p.LSA * bytes, p.Network * bytes}
}

// Total returns what takes any way.
func (p Paths) Total() int64 { return p.Own + p.LSA + p.Network }

// Plus adds up two.
func (p Paths) Plus(o Paths) Paths { return Paths{p.Own + o.Own, p.LSA + o.LSA, p.Network + o.Network} }
