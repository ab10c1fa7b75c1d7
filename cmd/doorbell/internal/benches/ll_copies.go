// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"errors"
	"slices"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// llSets is how many sets of slots low-latency operations use in turn.
const llSets = 2

// llCopies are the memcpys that a step needs, this rank's share: a token's message into its place at its expert's rank, from
// there to the expert's other rows, and each row that a combine is given to its token's rank, also if it stays on its rank, where
// nothing is copied. They go the same ways, between memory of the same kind, and touch as much of it. Where a rank is not reached
// by stores, this rank's own memory stands for it.
type llCopies struct {
	b              *bench
	w              *doorbell.Window // [set][rank][pair] messages, then [set][rank][pair] answers
	x, rows, outs  []byte
	put, pack, row int // bytes
	pair           int // messages of one rank to one, at most
	loads          []exchange
}

// exchange is how many messages go to each rank, and how many rows come from each.
type exchange struct{ messages, rows []int64 }

func (l *ll) memcpys(loads []*load) (*memcpys, error) {
	b, o := l.b, l.moe.Options()
	m := &llCopies{b: b, put: o.MessageBytes(), pack: o.Format.RowBytes(o.Hidden), row: o.AnswerBytes(), pair: 1}
	me, most := b.c.Rank(), 1
	for _, x := range loads {
		messages, selections := l.traffic(x)
		e := exchange{messages: messages[me]}
		rows := 0
		for r := range selections {
			e.rows = append(e.rows, selections[r][me])
			rows += int(selections[r][me])
			m.pair = max(m.pair, int(slices.Max(selections[r])))
		}
		m.loads, most = append(m.loads, e), max(most, rows)
	}
	m.x, m.rows, m.outs = make([]byte, o.MaxTokens*m.put), make([]byte, most*m.pack), make([]byte, most*m.row)
	buf, err := b.c.Alloc(m.answer(llSets, 0, 0))
	if err != nil {
		return nil, err
	}
	if m.w, err = b.c.Register(b.ctx, buf); err != nil {
		return nil, err
	}
	return &memcpys{
		dispatch: []func(int){
			m.each(func(e exchange) []int64 { return e.messages }, func(set, rank, i, all int) {
				copy(m.window(rank, m.message(set, me, i), m.put), piece(m.x, all, m.put))
			}),
			m.each(func(e exchange) []int64 { return e.rows }, func(set, rank, i, all int) {
				copy(piece(m.rows, all, m.pack), m.window(me, m.message(set, rank, i), m.pack))
			}),
		},
		combine: []func(int){
			m.each(func(e exchange) []int64 { return e.rows }, func(set, rank, i, all int) {
				copy(m.window(rank, m.answer(set, me, i), m.row), piece(m.outs, all, m.row))
			}),
		},
		close: func() error { return errors.Join(m.w.Close(), m.w.Buffer().Free()) },
	}, nil
}

// each does something for each message or row of a round's load: number i of a rank, number all of all.
func (m *llCopies) each(n func(exchange) []int64, do func(set, rank, i, all int)) func(round int) {
	return func(round int) {
		all := 0
		for rank, n := range n(m.loads[round%len(m.loads)]) {
			for i := range int(n) {
				do(round%llSets, rank, i, all)
				all++
			}
		}
	}
}

// message and answer are where number i of a rank lies in its target's window.
func (m *llCopies) message(set, rank, i int) int {
	return ((set*m.b.c.Size()+rank)*m.pair + i) * m.put
}
func (m *llCopies) answer(set, rank, i int) int {
	return m.message(llSets, 0, 0) + ((set*m.b.c.Size()+rank)*m.pair+i)*m.row
}

// window is so many bytes of a rank's window.
func (m *llCopies) window(rank, off, bytes int) []byte {
	if n := m.b.c.LSASize(); m.b.cfg.LSA && rank/n == m.b.c.Rank()/n {
		return gpu.Slice(gin.LSAPointer(m.w.Device(), int32(rank%n), uint64(off)), bytes)
	}
	return gpu.Slice(m.w.Device().Base.Byte(uint64(off)), bytes)
}
