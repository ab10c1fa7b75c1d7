// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"time"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
)

// ht is the high-throughput form.
type ht struct {
	*moeRun
	moe     *moe.HTBuffer
	got     *moe.HTReceived
	weights gpu.Ptr[float32] // combined
	pack    *packer
}

func (b *bench) highThroughput() error {
	m := &moeRun{b: b}
	return m.whole(&ht{moeRun: m, pack: newPacker(b.cfg.Format, b.cfg.Hidden)})
}

func (h *ht) open(tokens int) (buffer, error) {
	b, g := h.b, h.layers[0]
	weights, err := b.c.Alloc(max(4*tokens*g.TopK, 64))
	if err != nil {
		return nil, err
	}
	h.weights = gpu.Cast[float32](weights.Ptr())
	h.moe, err = moe.NewHT(b.ctx, b.c, moe.HTOptions{
		MaxTokens: tokens, Hidden: b.cfg.Hidden, TopK: g.TopK, Experts: g.Experts, NoLSA: !b.cfg.LSA, Format: b.cfg.Format,
		Channels: b.cfg.Channels, Ring: b.cfg.Ring,
	})
	return h.moe, err
}

func (h *ht) queueDispatch(x *load) (err error) {
	h.got, err = h.moe.Dispatch(h.b.st, x.in)
	return err
}

func (h *ht) queueAgain(x *load) error { return h.moe.DispatchAgain(h.b.st, h.got, x.in.X) }

func (h *ht) queueCombine() error {
	return h.moe.Combine(h.b.st, h.got, moe.HTCombined{Y: gpu.Cast[byte](h.out), Weights: h.weights})
}

// stages takes those of dispatches by the device's clock. A combine sends and waits at once: it has none.
func (h *ht) stages(x *load, s *spent) error {
	for _, op := range []struct {
		do    func(*load) error
		times *times
	}{{h.dispatch, &s.dispatch}, {h.repeat, &s.again}} {
		if err := op.do(x); err != nil {
			return err
		}
		told, sent, waited, err := h.moe.Times()
		if err != nil {
			return err
		}
		op.times.stages.Layout.add(time.Duration(told), 1)
		op.times.stages.Send.add(time.Duration(sent), 1)
		op.times.stages.Wait.add(time.Duration(waited), 1)
	}
	return h.combine()
}

// traffic is what each rank does in an operation.
func (h *ht) traffic(x *load) []ref.HTTraffic { return ref.HTTrafficOf(h.problem(x), h.node()) }

// What published figures count is what a world of one node brings to a rank, and of several what a rank would put to
// nodes, its own included.
func (h *ht) accounts(loads []*load) []report.Row {
	o, ranks, node := h.moe.Options(), int64(h.b.c.Size()), int64(h.node())
	var all ref.HTTraffic
	selections := int64(0)
	for _, x := range loads {
		for _, t := range h.traffic(x) {
			all = all.Plus(t)
		}
		selections += ref.PathsOf(ref.Traffic(h.problem(x)), 1).Total()
	}
	rows := ref.Paths{Own: all.Own, LSA: all.Stored - all.Own}
	row := func(bytes, stored, message int64, moved ref.Paths, copies ...report.Copy) report.Row {
		moved = moved.Plus(rows.Times(stored)).Plus(ref.Paths{Network: all.Put * message})
		m := report.MoE{Wire: "rank", Selections: selections, NVLinkBytes: all.Rows * bytes, Rows: all.Stored, RowBytes: stored, Copies: copies[:1]}
		m.PaperBytes = m.NVLinkBytes
		if node < ranks {
			m.Wire, m.RDMABytes, m.Messages, m.MessageBytes, m.Copies = "node", all.Nodes*bytes, all.Put, message, copies
			m.PaperBytes = m.RDMABytes
		}
		return h.row(loads, bytes, moved, m)
	}
	layouts := ref.Paths{Own: ranks, LSA: ranks * (node - 1), Network: ranks * (ranks - node)}.Times(int64(len(loads) * o.LayoutBytes(int(ranks))))
	sent, answered := int64(h.got.RowBytes()), ref.PayloadBytes(o.Hidden)
	dispatch := func(told ref.Paths) report.Row {
		return row(ref.HTRowBytes(o.Format, o.Hidden), sent+int64(h.got.InfoBytes()), int64(o.MessageBytes(int(node))), told,
			report.Copy{What: "place", Times: all.Stored, Bytes: sent},
			report.Copy{What: "stage", Times: all.Put, Bytes: sent},
			report.Copy{What: "put", Times: all.Put, Bytes: sent})
	}
	combine := row(answered, answered+int64(4*o.TopK), int64(o.AnswerBytes()), ref.Paths{},
		report.Copy{What: "read", Times: all.Stored, Bytes: answered},
		report.Copy{What: "put", Times: all.Put, Bytes: answered})
	return []report.Row{dispatch(layouts), dispatch(ref.Paths{}), combine}
}

// memcpys go from the buffer's own outputs to its rows, in place of its peers': other rows than the operations', and as many.
// Outputs stay as they were, so that combines in turn with them add up the same values.
func (h *ht) memcpys(loads []*load) (*memcpys, error) {
	o, size, row := h.moe.Options(), h.got.RowBytes(), 2*h.b.cfg.Hidden
	rows, outs := gpu.Slice(h.got.Rows(), o.MaxRows*size), gpu.Slice(h.got.Outputs(), o.MaxRows*row)
	var mine []ref.HTTraffic
	for _, x := range loads {
		mine = append(mine, h.traffic(x)[h.b.c.Rank()])
	}
	each := func(bytes int, n func(ref.HTTraffic) int64) func(int) {
		return func(round int) {
			for i := range int(n(mine[round%len(mine)])) {
				copy(piece(rows, i, bytes), piece(outs, i, bytes))
			}
		}
	}
	stored, put := func(t ref.HTTraffic) int64 { return t.Stored }, func(t ref.HTTraffic) int64 { return t.Put }
	came := func(t ref.HTTraffic) int64 { return t.Came }
	k := &memcpys{
		dispatch: []func(int){each(size, stored)}, combine: []func(int){each(row, stored)},
		close: func() error { return nil },
	}
	if h.node() < h.b.c.Size() {
		k.dispatch, k.combine = append(k.dispatch, each(size, put), each(size, put)), append(k.combine, each(row, came))
	}
	return k, nil
}
