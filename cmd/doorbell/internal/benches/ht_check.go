// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"bytes"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/num"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// checkRows compares all rows that this rank got with what routing and payloads' hash say. What it makes of them are their
// values, of an odd rank with the sign turned.
func (h *ht) checkRows(x *load, iter uint64) {
	b, p, r, hid := h.b, h.problem(x), h.b.c.Rank(), h.b.cfg.Hidden
	n, err := h.moe.Count(h.got)
	if err != nil {
		b.found("%v", err)
		return
	}
	size, info := h.got.RowBytes(), h.got.InfoBytes()
	rows := gpu.Slice(h.got.Rows(), n*size)
	infos := gpu.Slice(gpu.Cast[byte](h.got.Infos()), n*info)
	outs := gpu.Slice(gpu.Cast[uint16](h.got.Outputs()), n*hid)
	weights := gpu.Slice(h.got.OutputWeights(), n*p.TopK)
	row, i := make([]uint16, hid), 0
	first, end := int32(p.FirstExpert(r)), int32(p.FirstExpert(r)+p.LocalExperts(r))
	for s := range p.Ranks {
		for t := range p.Tokens(s) {
			idx := p.Idx[s][t*p.TopK : (t+1)*p.TopK]
			if !goesTo(idx, first, end) {
				continue
			}
			if i == n {
				b.found("only %d rows came", n)
				return
			}
			at := gpu.PtrOf(infos[i*info:])
			f := gpu.Cast[moe.HTInfo](at).Raw()
			if int(f.Rank) != s || int(f.Token) != t {
				b.found("row %d is token %d of rank %d, must be token %d of rank %d", i, f.Token, f.Rank, t, s)
			}
			experts := gpu.Cast[int32](at.Byte(gpu.SizeOf[moe.HTInfo]()))
			for k, e := range idx {
				local, w := int32(-1), float32(0)
				if e >= first && e < end {
					local, w = e-first, p.Weights[s][t*p.TopK+k]
				}
				if got, gotW := experts.At(k).Load(), gpu.Cast[float32](experts.At(p.TopK+k)).Load(); got != local || gotW != w {
					b.found("row %d: selection %d is of expert %d with weight %g, must be of %d with %g", i, k, got, gotW, local, w)
				}
				weights[i*p.TopK+k] = w
			}
			routing.FillRow(row, routing.RowKey(b.cfg.Seed, iter, s, t))
			want, worth := h.pack.row(row)
			if got := rows[i*size:][:size]; !bytes.Equal(got, want) {
				b.found("row %d: byte %d of token %d of rank %d is wrong", i, differs(got, want), t, s)
			}
			turn(outs[i*hid:][:hid], worth, r)
			h.rowBytes += int64(size)
			i++
		}
	}
	if i != n {
		b.found("%d rows came, must be %d", n, i)
	}
}

// turn is what rank r makes of a row.
func turn(out, x []uint16, r int) {
	sign := uint16(r&1) << 15
	for j, v := range x {
		out[j] = v ^ sign
	}
}

func goesTo(idx []int32, first, end int32) bool {
	for _, e := range idx {
		if e >= first && e < end {
			return true
		}
	}
	return false
}

// checkSums compares the combined tokens and weights, bit by bit, with what this rank computes for itself.
func (h *ht) checkSums(x *load, iter uint64) {
	b, p, r, hid, perNode := h.b, h.problem(x), h.b.c.Rank(), h.b.cfg.Hidden, h.node()
	weights := gpu.Slice(h.weights, p.Tokens(r)*p.TopK)
	sent, want := make([]uint16, hid), make([]uint16, hid)
	acc, node, row := make([]float32, hid), make([]float32, hid), make([]uint16, hid)
	for t := range p.Tokens(r) {
		routing.FillRow(sent, routing.RowKey(b.cfg.Seed, iter, r, t))
		_, worth := h.pack.row(sent)
		idx := p.Idx[r][t*p.TopK : (t+1)*p.TopK]
		clear(acc)
		for first := 0; first < p.Ranks; first += perNode {
			clear(node)
			for to := first; to < first+perNode; to++ {
				if e := int32(p.FirstExpert(to)); goesTo(idx, e, e+int32(p.LocalExperts(to))) {
					turn(row, worth, to)
					for j, v := range row {
						node[j] += num.BF16ToF32(v)
					}
				}
			}
			for j, v := range node {
				if perNode < p.Ranks {
					v = num.BF16ToF32(num.F32ToBF16(v))
				}
				acc[j] += v
			}
		}
		for j, v := range acc {
			want[j] = num.F32ToBF16(v)
		}
		if err := ref.DiffBits(want, h.y[t*hid:(t+1)*hid]); err != nil {
			b.found("combined token %d: %v", t, err)
		}
		for k, e := range idx {
			w := float32(0)
			if e >= 0 {
				w = p.Weights[r][t*p.TopK+k]
			}
			if got := weights[t*p.TopK+k]; got != w {
				b.found("combined token %d: weight %d is %g, must be %g", t, k, got, w)
			}
		}
		h.sumBytes += int64(2 * hid)
	}
}

// signals compares them with what they must be by this rank's own account, and that with the routing: how many messages it
// has put to other nodes.
func (h *ht) signals() error {
	s, err := h.moe.Signals(h.b.ctx, h.b.st)
	if err != nil {
		return err
	}
	for i := range s.Got {
		if s.Got[i] != s.Want[i] {
			h.b.found("signal %d ended at %d, must be %d", i, s.Got[i], s.Want[i])
		}
	}
	put, err := h.moe.Messages()
	if err != nil {
		return err
	}
	want, messages := uint64(0), make(map[*load]uint64)
	for _, x := range h.ops {
		if _, known := messages[x]; !known {
			t := h.traffic(x)[h.b.c.Rank()]
			messages[x] = uint64(t.Put + t.Came) // dispatched and answered
		}
		want += messages[x]
	}
	if put != want {
		h.b.found("%d messages put to other nodes, must be %d", put, want)
	}
	return nil
}
