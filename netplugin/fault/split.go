// SPDX-License-Identifier: Apache-2.0

package fault

import "github.com/doorbell-net/doorbell/netplugin"

// split is a network that moves an operation's bytes in pieces.
type split struct {
	chance
	behind bool // the network keeps no order: a piece goes when the one before it has ended
}

const maxPieces = 4

// pieces is in how many an operation is done. One that the network may refuse stays whole: it writes nothing then. So does
// one whose bytes only the device reaches.
func (s split) pieces(op *netplugin.Op, whole bool) int {
	n := len(op.Data)
	if n < maxPieces || op.Kind == netplugin.Signal || !whole || !op.Src.IsNil() || !s.hit() {
		return 1
	}
	return 2 + s.below(maxPieces-1)
}

// waits says that the next piece may not go yet.
func (s split) waits(it *item) bool { return s.behind && it.flying > 0 }

// next is the next piece; the last one carries the signal.
func (s split) next(it *item) netplugin.Op {
	op := it.op
	if it.pieces == 1 && it.sent == 0 {
		return op
	}
	rest := len(op.Data) - it.sent
	n := rest
	if it.pieces > 1 {
		n = 1 + s.below(rest-it.pieces+1)
		op.Raise = false
	}
	op.Data = op.Data[it.sent : it.sent+n]
	op.DstOff += uint64(it.sent)
	return op
}
