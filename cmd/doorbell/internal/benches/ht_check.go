// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"bytes"
	"errors"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/num"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// checkRows compares all rows that this rank got with what routing and payloads' hash say. What it makes of them are their
// values, of an odd rank with the sign turned.
func (h *ht) checkRows(x *load, iter uint64) error {
	b, p, r, hid := h.b, h.problem(x), h.b.c.Rank(), h.b.cfg.Hidden
	n, err := h.moe.Count(h.got)
	if err != nil {
		return err
	}
	came := h.received(n)
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
				return came.answer()
			}
			got, err := came.row(i)
			if err != nil {
				return err
			}
			f := gpu.Cast[moe.HTInfo](gpu.PtrOf(got.info)).Raw()
			if int(f.Rank) != s || int(f.Token) != t {
				b.found("row %d is token %d of rank %d, must be token %d of rank %d", i, f.Token, f.Rank, t, s)
			}
			experts := gpu.Cast[int32](gpu.PtrOf(got.info).Byte(gpu.SizeOf[moe.HTInfo]()))
			for k, e := range idx {
				local, w := int32(-1), float32(0)
				if e >= first && e < end {
					local, w = e-first, p.Weights[s][t*p.TopK+k]
				}
				if e, gotW := experts.At(k).Load(), gpu.Cast[float32](experts.At(p.TopK+k)).Load(); e != local || gotW != w {
					b.found("row %d: selection %d is of expert %d with weight %g, must be of %d with %g", i, k, e, gotW, local, w)
				}
				got.weights[k] = w
			}
			routing.FillRow(row, routing.RowKey(b.cfg.Seed, iter, s, t))
			want, worth := h.pack.row(row)
			if !bytes.Equal(got.payload, want) {
				b.found("row %d: byte %d of token %d of rank %d is wrong", i, differs(got.payload, want), t, s)
			}
			turn(got.out, worth, r)
			h.rowBytes += int64(len(want))
			i++
		}
	}
	if i != n {
		b.found("%d rows came, must be %d", n, i)
	}
	return came.answer()
}

// arrived is the host's copy of what a dispatch brought, some rows at a time, and of the answers to them.
type arrived struct {
	h               *ht
	n, from, to     int // rows in all; of which from..to-1 are here
	payloads, infos []byte
	outs            []uint16
	weights         []float32
}

const arrivedRows = 256

func (h *ht) received(n int) *arrived {
	return &arrived{
		h: h, n: n, payloads: make([]byte, arrivedRows*h.got.RowBytes()), infos: make([]byte, arrivedRows*h.got.InfoBytes()),
		outs: make([]uint16, arrivedRows*h.b.cfg.Hidden), weights: make([]float32, arrivedRows*h.moe.Options().TopK),
	}
}

type arrivedRow struct {
	payload, info []byte
	out           []uint16
	weights       []float32
}

// row is row i, of which payload and info came, and out and weights are to be filled. Rows are asked for in order.
func (a *arrived) row(i int) (arrivedRow, error) {
	h, k := a.h, a.h.moe.Options().TopK
	if i == a.to {
		if err := a.answer(); err != nil {
			return arrivedRow{}, err
		}
		a.from, a.to = i, min(i+arrivedRows, a.n)
		n := a.to - i
		err := errors.Join(
			doorbell.Read(h.b.c, a.payloads[:n*h.got.RowBytes()], h.got.Rows().At(i*h.got.RowBytes())),
			doorbell.Read(h.b.c, a.infos[:n*h.got.InfoBytes()], gpu.Cast[byte](h.got.Infos()).At(i*h.got.InfoBytes())))
		if err != nil {
			return arrivedRow{}, err
		}
	}
	return arrivedRow{
		piece(a.payloads, i-a.from, h.got.RowBytes()), piece(a.infos, i-a.from, h.got.InfoBytes()),
		piece(a.outs, i-a.from, h.b.cfg.Hidden), piece(a.weights, i-a.from, k),
	}, nil
}

// answer gives the device what was made of the rows that are here.
func (a *arrived) answer() error {
	h, n, k := a.h, a.to-a.from, a.h.moe.Options().TopK
	return errors.Join(
		doorbell.Write(h.b.c, gpu.Cast[uint16](h.got.Outputs()).At(a.from*h.b.cfg.Hidden), a.outs[:n*h.b.cfg.Hidden]),
		doorbell.Write(h.b.c, h.got.OutputWeights().At(a.from*k), a.weights[:n*k]))
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
func (h *ht) checkSums(x *load, iter uint64) error {
	b, p, r, hid, perNode := h.b, h.problem(x), h.b.c.Rank(), h.b.cfg.Hidden, h.node()
	weights := make([]float32, p.Tokens(r)*p.TopK)
	if err := doorbell.Read(b.c, weights, h.weights); err != nil {
		return err
	}
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
	return nil
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
	want, traffic := int64(0), make(map[*load]ref.HTTraffic)
	of := func(x *load) ref.HTTraffic {
		if _, known := traffic[x]; !known {
			traffic[x] = h.traffic(x)[h.b.c.Rank()]
		}
		return traffic[x]
	}
	for _, x := range h.ops {
		want += of(x).Put + of(x).Came // dispatched and answered
	}
	for _, x := range h.again {
		want += of(x).Put
	}
	if put != uint64(want) {
		h.b.found("%d messages put to other nodes, must be %d", put, want)
	}
	return nil
}
