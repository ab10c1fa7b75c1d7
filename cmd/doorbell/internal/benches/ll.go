// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// ll is the low-latency form.
type ll struct {
	*moeRun
	moe *moe.Buffer
	got *moe.Received
}

func (b *bench) lowLatency() error {
	m := &moeRun{b: b}
	return m.whole(&ll{moeRun: m})
}

func (l *ll) open(tokens int) (buffer, error) {
	b, g, copies := l.b, l.layers[0], 1
	for _, g := range l.layers {
		copies = max(copies, copiesOf(g, tokens))
	}
	var err error
	l.moe, err = moe.New(b.ctx, b.c, moe.Options{
		MaxTokens: tokens, Hidden: b.cfg.Hidden, TopK: g.TopK, Experts: g.Experts, NoLSA: !b.cfg.LSA, Copies: copies, Format: b.cfg.Format, PerRank: b.cfg.PerRank,
	})
	return l.moe, err
}

// copiesOf is how many selections of one rank name one expert at most, in so many tokens.
func copiesOf(g *routing.Routing, tokens int) int {
	most := 1
	for r := range g.Ranks {
		count := make(map[int32]int)
		for _, e := range g.Idx[r] {
			if e >= 0 {
				count[e]++
				most = max(most, (count[e]+tokens-1)/tokens)
			}
		}
	}
	return most
}

func (l *ll) queueDispatch(x *load) (err error) {
	l.got, err = l.moe.Dispatch(l.b.st, x.in)
	return err
}

func (l *ll) queueCombine() error { return l.moe.Combine(l.b.st, l.got, gpu.Cast[byte](l.out)) }

// stages times what sends and what unpacks of a step. All ranks have sent before anybody receives, so that unpacking waits
// for nobody.
func (l *ll) stages(x *load, s *spent) error {
	b := l.b
	half := func(w *stopwatch, do func() error) error {
		took, err := l.stage(do)
		if err != nil {
			return err
		}
		w.add(took, 1)
		return b.c.Barrier(b.ctx)
	}
	for _, part := range []struct {
		w  *stopwatch
		do func() error
	}{
		{&s.dispatch.stages.Send, func() (err error) {
			if l.got, err = l.moe.StartDispatch(b.st, x.in); err == nil {
				l.ops = append(l.ops, x)
			}
			return err
		}},
		{&s.dispatch.stages.Unpack, func() error { return l.moe.FinishDispatch(b.st, l.got) }},
		{&s.combine.stages.Send, func() error { return l.moe.StartCombine(b.st, l.got, gpu.Cast[byte](l.out)) }},
		{&s.combine.stages.Unpack, func() error { return l.moe.FinishCombine(b.st, l.got) }},
	} {
		if err := half(part.w, part.do); err != nil {
			return err
		}
	}
	return nil
}

// traffic is what goes from each rank to each in an operation: [source][rank of the experts].
func (l *ll) traffic(x *load) (messages, selections [][]int64) {
	p := l.problem(x)
	selections = ref.Traffic(p)
	if l.b.cfg.PerRank {
		return ref.RankTraffic(p), selections
	}
	return selections, selections
}

// Bandwidth is the logical one: each selection counts, also those that stay on their rank.
func (l *ll) accounts(loads []*load) []report.Row {
	o, g, node := l.moe.Options(), l.layers[0], l.node()
	var sent, answered ref.Paths
	for _, x := range loads {
		messages, selections := l.traffic(x)
		sent, answered = sent.Plus(ref.PathsOf(messages, node)), answered.Plus(ref.PathsOf(selections, node))
	}
	wire, boxes := "expert", int64(g.Experts) // each rank is told a count by each box, also of nothing
	if l.b.cfg.PerRank {
		wire, boxes = "rank", int64(min(g.Experts, g.Ranks))
	}
	row := func(bytes int64, paths ref.Paths, message int, signals int64, copies ...report.Copy) report.Row {
		return l.row(loads, bytes, paths.Times(int64(message)), report.MoE{
			Wire: wire, Selections: answered.Total(), PaperBytes: answered.Total() * bytes,
			MessageBytes: int64(message), Messages: paths.Total(), Signals: signals, Copies: copies,
		})
	}
	dispatch := row(ref.MessageBytes(o.Format, o.Hidden), sent, o.MessageBytes(), boxes*int64(g.Ranks),
		report.Copy{What: "put", Times: sent.Total(), Bytes: int64(o.MessageBytes())},
		report.Copy{What: "pack", Times: answered.Total(), Bytes: int64(o.Format.RowBytes(o.Hidden))})
	combine := row(ref.PayloadBytes(o.Hidden), answered, o.AnswerBytes(), int64(g.Experts*g.Ranks),
		report.Copy{What: "answer", Times: answered.Total(), Bytes: int64(o.AnswerBytes())})
	return []report.Row{dispatch, combine}
}
