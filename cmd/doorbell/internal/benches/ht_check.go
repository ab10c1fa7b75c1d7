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

// checkRows compares all rows that this rank got with what routing and payloads' hash say, and writes what it makes of
// them: their values, of an odd rank with the sign turned.
func (h *ht) checkRows(iter uint64) {
	b, p, r, hid := h.b, h.p, h.b.c.Rank(), h.b.cfg.Hidden
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
	x, i := make([]uint16, hid), 0
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
			routing.FillRow(x, routing.RowKey(b.cfg.Seed, iter, s, t))
			want, worth := h.pack.row(x)
			if row := rows[i*size:][:size]; !bytes.Equal(row, want) {
				b.found("row %d: byte %d of token %d of rank %d is wrong", i, differs(row, want), t, s)
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
func (h *ht) checkSums(iter uint64) {
	b, p, r, hid := h.b, h.p, h.b.c.Rank(), h.b.cfg.Hidden
	weights := gpu.Slice(h.out.Weights, p.Tokens(r)*p.TopK)
	x, want := make([]uint16, hid), make([]uint16, hid)
	acc, node, row := make([]float32, hid), make([]float32, hid), make([]uint16, hid)
	for t := range p.Tokens(r) {
		routing.FillRow(x, routing.RowKey(b.cfg.Seed, iter, r, t))
		_, worth := h.pack.row(x)
		idx := p.Idx[r][t*p.TopK : (t+1)*p.TopK]
		clear(acc)
		for first := 0; first < p.Ranks; first += h.node {
			clear(node)
			for to := first; to < first+h.node; to++ {
				if e := int32(p.FirstExpert(to)); goesTo(idx, e, e+int32(p.LocalExperts(to))) {
					turn(row, worth, to)
					for j, v := range row {
						node[j] += num.BF16ToF32(v)
					}
				}
			}
			for j, v := range node {
				if h.node < p.Ranks {
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

// packer makes rows as they are sent, and says what they are worth, as ref.Encode and ref.Decode do, by tables: elements
// are integers of 8 bits, so that the largest magnitude of a group says all.
type packer struct {
	format moe.Format
	sent   []byte
	worth  []uint16
	tables [129]*packTable
}

type packTable struct {
	code  [256]byte // by the integer, as a byte
	worth [256]uint16
	scale []byte
}

const group = 128

func newPacker(f moe.Format, hidden int) *packer {
	return &packer{format: f, sent: make([]byte, f.RowBytes(hidden)), worth: make([]uint16, hidden)}
}

// row is valid until the next call.
func (p *packer) row(x []uint16) (sent []byte, worth []uint16) {
	if p.format == moe.BF16 {
		return gpu.Slice(gpu.Cast[byte](gpu.PtrTo(&x[0])), 2*len(x)), x
	}
	scales := p.sent[p.format.ValueBytes(len(x)):]
	for g := 0; g*group < len(x); g++ {
		from, top := g*group, 0
		part := x[from:min(from+group, len(x))]
		for _, v := range part {
			i := int(num.BF16ToF32(v))
			top = max(top, i, -i)
		}
		t := p.table(top)
		for j, v := range part {
			i := byte(int8(num.BF16ToF32(v)))
			p.sent[from+j], p.worth[from+j] = t.code[i], t.worth[i]
		}
		copy(scales[g*len(t.scale):], t.scale)
	}
	return p.sent, p.worth
}

// table is of groups whose largest magnitude is top: made by the reference, of groups that have each integer in turn.
func (p *packer) table(top int) *packTable {
	if p.tables[top] == nil {
		t := &packTable{}
		for i := -top; i <= min(top, 127); i++ {
			x := make([]uint16, group)
			x[0], x[1] = num.F32ToBF16(float32(-top)), num.F32ToBF16(float32(i))
			row := ref.Encode(p.format, x)
			t.code[byte(int8(i))], t.worth[byte(int8(i))] = row[1], ref.Decode(p.format, row, group)[1]
			t.scale = row[p.format.ValueBytes(group):][:map[bool]int{true: 1, false: 4}[p.format == moe.FP8UE8M0]]
		}
		p.tables[top] = t
	}
	return p.tables[top]
}

// rows makes the rows of the result: bandwidth of the mean time of a rank, ratios of medians.
func (h *ht) rows(t *htTimes, iters int) error {
	b := h.b
	perRank, value := int64(0), float64(2*b.cfg.Hidden)
	for r := range h.p.Ranks {
		if tr := ref.HTTrafficOf(h.p, r, h.node); h.node == h.p.Ranks {
			perRank += tr.Rows
		} else {
			perRank += tr.Nodes
		}
	}
	bad, compared := b.bad, [htSeries]int64{htDispatch: h.rowBytes, htCombine: h.sumBytes}
	for i := range htSeries {
		b.checked = compared[i]
		parts, err := b.share(part{Ns: t.ns[i], Count: uint64(iters), Net: t.net[i]}, &t.hist[i], nil)
		if err != nil {
			return err
		}
		size := float64(perRank) / float64(h.p.Ranks) * value
		if i < htCombine && b.cfg.Format != moe.BF16 {
			size *= float64(1+4.0/group) / 2
		}
		row := b.row(int64(size), b.cfg.LSA && b.c.LSASize() == b.c.Size())
		if b.cfg.LSA && b.c.LSASize() > 1 && b.c.LSASize() < b.c.Size() {
			row.Net = "lsa+" + row.Net
		}
		row.Label = htNames[i]
		ns := uint64(0)
		for _, p := range parts {
			row.NetBytes += int64(p.Net)
			ns += p.Ns
		}
		if (i == htDispatch || i == htCombine) && ns > 0 {
			row.GBps = size * float64(iters*len(parts)) / float64(ns)
		}
		b.bad = ""
		if err := b.add(row, parts); err != nil {
			return err
		}
		b.rows[len(b.rows)-1].Iters = int64(iters)
	}
	for op, copies := range map[int]int{htDispatch: htDispatchCopies, htCombine: htCombineCopies} {
		if x := b.rows[copies].P50US; x > 0 {
			b.rows[op].Ratio = b.rows[op].P50US / x
		}
	}
	if b.bad = bad; bad != "" {
		return errWrong
	}
	return nil
}
