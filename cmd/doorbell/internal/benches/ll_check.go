// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"bytes"
	"errors"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// checkRows compares the rows that this rank's experts got with what the routing and the payloads' hash say, and
// writes what the experts make of them.
func (l *ll) checkRows(x *load, iter uint64) error {
	b, g, h := l.b, x.route, l.b.cfg.Hidden
	locals, room := l.moe.LocalExperts(), l.got.Capacity()
	size, sent := l.got.RowBytes(), make([]uint16, h)
	counts := make([]uint32, locals)
	if err := doorbell.Read(b.c, counts, l.got.Counts()); err != nil {
		return err
	}
	for e := range locals {
		expert := int32(l.moe.FirstExpert() + e)
		want := 0
		for s := range g.Ranks {
			for _, e := range g.Idx[s] {
				if e == expert {
					want++
				}
			}
		}
		if int(counts[e]) != want {
			b.found("expert %d got %d rows, must get %d", expert, counts[e], want)
		}
		n := min(int(counts[e]), room)
		infos, rows, outs := make([]moe.RowInfo, n), make([]byte, n*size), make([]uint16, n*h)
		if err := errors.Join(doorbell.Read(b.c, infos, l.got.Infos().At(e*room)), doorbell.Read(b.c, rows, l.got.Rows().At(e*room*size))); err != nil {
			return err
		}
		seen := make(map[moe.RowInfo]bool, want)
		for i, f := range infos {
			if f.Rank < 0 || int(f.Rank) >= g.Ranks || f.K < 0 || int(f.K) >= g.TopK || f.Token < 0 || int(f.Token) >= g.Tokens(int(f.Rank)) ||
				g.Idx[f.Rank][int(f.Token)*g.TopK+int(f.K)] != expert || seen[f] {
				b.found("expert %d: row %d says it is selection %d of token %d of rank %d, which is not so, or twice", expert, i, f.K, f.Token, f.Rank)
				continue
			}
			seen[f] = true
			row := rows[i*size:][:size]
			routing.FillRow(sent, routing.RowKey(b.cfg.Seed, iter, int(f.Rank), int(f.Token)))
			if want := ref.Encode(b.cfg.Format, sent); !bytes.Equal(row, want) {
				b.found("expert %d: byte %d of token %d of rank %d is wrong", expert, differs(row, want), f.Token, f.Rank)
			}
			for j, v := range ref.Decode(b.cfg.Format, row, h) {
				outs[i*h+j] = ref.ExpertFn(int(expert), j, v)
			}
			l.rowBytes += int64(size)
		}
		if err := doorbell.Write(b.c, gpu.Cast[uint16](l.got.Outputs()).At(e*room*h), outs); err != nil {
			return err
		}
	}
	return nil
}

// checkSums compares the combined tokens, bit by bit, with a sum that this rank computes for itself.
func (l *ll) checkSums(x *load, iter uint64) error {
	b, g, h, r := l.b, x.route, l.b.cfg.Hidden, l.b.c.Rank()
	want, row := make([]uint16, h), make([]uint16, h)
	for t := range g.Tokens(r) {
		routing.FillRow(row, routing.RowKey(b.cfg.Seed, iter, r, t))
		row = ref.Decode(b.cfg.Format, ref.Encode(b.cfg.Format, row), h)
		ref.Token(want, row, g.Idx[r][t*g.TopK:(t+1)*g.TopK], g.Weights[r][t*g.TopK:(t+1)*g.TopK], ref.ExpertFn)
		if err := ref.DiffBits(want, l.y[t*h:(t+1)*h]); err != nil {
			b.found("combined token %d: %v", t, err)
		}
		l.sumBytes += int64(2 * h)
	}
	return nil
}

func (l *ll) signals() error {
	b := l.b
	s, err := l.moe.Signals(b.ctx, b.st)
	if err != nil {
		return err
	}
	ranks, boxes := b.c.Size(), l.boxes()
	want := make([][]uint64, len(s.Ops)) // by set, box of this rank, and source
	for set := range want {
		want[set] = make([]uint64, boxes*ranks)
	}
	messages := make(map[*load][]uint64)
	for op, x := range l.ops {
		if messages[x] == nil {
			messages[x] = l.messagesOf(x.route)
		}
		for i, n := range messages[x] {
			want[op%len(want)][i] += n + 1
		}
	}
	for set := range s.Ops {
		for i, want := range want[set] {
			if got := s.Dispatch[set][i]; got != want {
				b.found("dispatch signal of box %d, rank %d ended at %d, must be %d", i/ranks, i%ranks, got, want)
			}
		}
		for e, got := range s.Combine[set] {
			if want := uint64(s.Ops[set][1]); got != want {
				b.found("combine signal of expert %d ended at %d, must be %d", e, got, want)
			}
		}
	}
	return nil
}

// boxes is how many boxes this rank has: its experts', or its own.
func (l *ll) boxes() int {
	if l.b.cfg.PerRank {
		return min(l.moe.LocalExperts(), 1)
	}
	return l.moe.LocalExperts()
}

// messagesOf is how many messages each rank sends to each box of this rank, [box*ranks + source]: one for each selection
// of an expert, or, where there is one box, for each token that selects any of its experts.
func (l *ll) messagesOf(g *routing.Routing) []uint64 {
	n := make([]uint64, l.boxes()*g.Ranks)
	first, locals := l.moe.FirstExpert(), l.moe.LocalExperts()
	for src := range g.Ranks {
		for i := 0; i < len(g.Idx[src]); i += g.TopK {
			here := false
			for _, e := range g.Idx[src][i : i+g.TopK] {
				local := int(e) - first
				switch {
				case e < 0 || local < 0 || local >= locals:
				case !l.b.cfg.PerRank:
					n[local*g.Ranks+src]++
				case !here:
					n[src]++
					here = true
				}
			}
		}
	}
	return n
}
