// SPDX-License-Identifier: Apache-2.0

package wqe

// What a CQE says.
const (
	CQEDone    = 0x0 // a WQE has ended
	CQEFailed  = 0xd // it ended with an error: see Syndrome
	CQEInvalid = 0xf // none was written here yet
)

// Syndrome is why a WQE failed.
type Syndrome uint8

// Syndromes.
const (
	NoSyndrome       Syndrome = 0
	LocalLength      Syndrome = 0x01
	LocalOperation   Syndrome = 0x02 // the WQE is none, or the queue pair cannot
	LocalProtection  Syndrome = 0x04 // a key or an address of this rank's memory
	Flushed          Syndrome = 0x05 // one before it failed
	BadResponse      Syndrome = 0x10
	LocalAccess      Syndrome = 0x11
	RemoteInvalid    Syndrome = 0x12
	RemoteAccess     Syndrome = 0x13 // a key or an address of the peer's memory
	RemoteOperation  Syndrome = 0x14
	RetriesExceeded  Syndrome = 0x15 // the peer does not answer
	NotReadyExceeded Syndrome = 0x16
	RemoteAborted    Syndrome = 0x22
)

// Where the bytes of a failed CQE's SyndromeWord stand.
const (
	syndromeShift = 56
	vendorShift   = 48
)

func (s Syndrome) String() string {
	switch s {
	case LocalLength:
		return "local length error"
	case LocalOperation:
		return "local queue pair operation error"
	case LocalProtection:
		return "local protection error"
	case Flushed:
		return "flushed"
	case BadResponse:
		return "bad response"
	case LocalAccess:
		return "local access error"
	case RemoteInvalid:
		return "remote invalid request"
	case RemoteAccess:
		return "remote access error"
	case RemoteOperation:
		return "remote operation error"
	case RetriesExceeded:
		return "transport retries exceeded"
	case NotReadyExceeded:
		return "receiver-not-ready retries exceeded"
	case RemoteAborted:
		return "remote aborted"
	case NoSyndrome:
		return "no error"
	}
	return "unknown syndrome"
}

// PeerGone says whether the peer did not answer, and did not refuse.
func (s Syndrome) PeerGone() bool { return s == RetriesExceeded || s == NotReadyExceeded }

// Tail is the word of a CQE that its NIC writes last: who has loaded it knows which WQE the CQE is of, and how that ended.
// Load it with acquire, and then the rest.
type Tail uint64

// TailWord and SyndromeWord are the places in a block of the Tail and of what SyndromeOf takes.
const (
	TailWord     = 7
	SyndromeWord = 6
)

// EmptyTail is that of a CQE which was not written yet.
const EmptyTail = Tail(uint64(CQEInvalid<<4|1) << 56)

// Is is what the CQE says: CQEDone, CQEFailed, CQEInvalid.
func (t Tail) Is() uint32 { return uint32(t >> 60) }

// Owner is the bit that each lap over the queue flips: 0 in the first.
func (t Tail) Owner() uint32 { return uint32(t>>56) & 1 }

// Ahead is by how many WQEs the one that the CQE is of comes after number index; below 0 it is one before. The two are less
// than 32,768 apart.
func (t Tail) Ahead(index uint64) int64 {
	return int64(int16(uint16(be(uint64(t))>>16) - uint16(index)))
}

// SyndromeOf is the syndrome in SyndromeWord of a CQE that says CQEFailed.
func SyndromeOf(word uint64) Syndrome { return Syndrome(word >> syndromeShift) }

// CQE is a completion with its fields apart.
type CQE struct {
	Is       uint8 // CQEDone, CQEFailed, CQEInvalid
	Owner    uint8
	Index    uint16 // of the WQE, its low bits
	Number   uint32 // of the queue pair
	Op       uint8  // of the WQE, where it failed
	Syndrome Syndrome
	Vendor   uint8 // the maker's own word on it
}

// Encode writes the words that say it; the others are 0. The Tail is stored last, with release.
func (c *CQE) Encode(b *Block) {
	*b = Block{}
	if c.Is == CQEFailed {
		b[SyndromeWord] = uint64(c.Syndrome)<<syndromeShift | uint64(c.Vendor)<<vendorShift
	}
	b[TailWord] = be(uint64(c.Op)<<56 | uint64(c.Number&numberBits)<<32 | uint64(c.Index)<<16 | uint64(c.Is&0xf)<<4 | uint64(c.Owner&1))
}

// DecodeCQE reads a CQE. Any bits decode; nothing is checked.
func (b *Block) DecodeCQE() CQE {
	t := be(b[TailWord])
	c := CQE{Is: uint8(t) >> 4, Owner: uint8(t) & 1, Index: uint16(t >> 16), Number: uint32(t>>32) & numberBits, Op: uint8(t >> 56)}
	if c.Is == CQEFailed {
		c.Syndrome, c.Vendor = SyndromeOf(b[SyndromeWord]), uint8(b[SyndromeWord]>>vendorShift)
	}
	return c
}
