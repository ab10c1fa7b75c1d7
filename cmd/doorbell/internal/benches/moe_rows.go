// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"fmt"
	"runtime"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/moe/ref"
)

// moePart is what a rank tells of an operation beyond its times.
type moePart struct {
	Stages stages
	Copies []stopwatch
}

// row is what a row says of loads in turn, before anything is measured: each time so many bytes that published figures
// count, and what was moved. Counts and bytes of x, and of its copies, are of all loads together.
func (m *moeRun) row(loads []*load, bytes int64, moved ref.Paths, x report.MoE) report.Row {
	b, g, node := m.b, m.layers[0], m.node()
	r := b.row(bytes, node == g.Ranks)
	if node > 1 && node < g.Ranks {
		r.Net = "lsa+" + r.Net
	}
	h := report.StampHost()
	x.Machine = fmt.Sprintf("%d cores of %s", runtime.NumCPU(), h.CPU)
	x.Hidden, x.TopK, x.Experts, x.Layers, x.DType = b.cfg.Hidden, g.TopK, g.Experts, len(loads), b.cfg.Format.String()
	for _, l := range loads {
		x.Tokens = max(x.Tokens, l.route.MaxTokens())
	}
	if m.clock != nil {
		x.Clock = "device"
	}
	x.OwnBytes, x.LSABytes, x.NetworkBytes = moved.Own, moved.LSA, moved.Network
	means := []*int64{&x.Selections, &x.PaperBytes, &x.RDMABytes, &x.NVLinkBytes, &x.Messages, &x.Rows, &x.OwnBytes, &x.LSABytes, &x.NetworkBytes}
	for i := range x.Copies {
		means = append(means, &x.Copies[i].Times)
	}
	for _, n := range means {
		*n /= int64(len(loads))
	}
	r.MoE = &x
	return r
}

// rows makes a row of loads for each operation, of what all ranks told of it. Bandwidth is of the mean time of a rank.
func (m *moeRun) rows(loads []*load, ops []operation, parts [][]part) error {
	b := m.b
	bad := b.bad
	for i, row := range m.form.accounts(loads) {
		row.Label = ops[i].label
		b.bad = ""
		if err := b.addMoE(row, parts[i]); err != nil {
			return err
		}
	}
	if b.bad = bad; bad != "" {
		return errWrong
	}
	return nil
}

// addMoE makes a row of what all ranks told of an operation.
func (b *bench) addMoE(row report.Row, parts []part) error {
	m := row.MoE
	ns, count, most := uint64(0), uint64(0), uint64(0)
	var s stages
	copies := make([]stopwatch, len(m.Copies))
	for r, p := range parts {
		ns, count, most = ns+p.Ns, count+p.Count, max(most, p.Count)
		if p.MoE == nil {
			continue
		}
		s = s.plus(p.MoE.Stages)
		for i, w := range p.MoE.Copies {
			copies[i] = copies[i].plus(w)
		}
		var h report.Hist
		if err := h.UnmarshalBinary(p.Hist); err != nil {
			return fmt.Errorf("latencies of rank %d: %w", r, err)
		}
		t := report.RankTimes{Rank: r, Mean: float64(p.Ns) / 1e3 / float64(max(p.Count, 1)), P99: float64(h.Quantile(0.99)) / 1e3, Max: float64(h.Max()) / 1e3}
		t.P50, _, t.Min = h.Micros()
		m.PerRank = append(m.PerRank, t)
	}
	if count > 0 {
		row.MeanUS = float64(ns) / 1e3 / float64(count)
		row.GBps = float64(m.PaperBytes) / float64(len(parts)) / row.MeanUS / 1e3
		m.LayoutUS, m.SendUS, m.WaitUS, m.UnpackUS = s.Layout.mean(), s.Send.mean(), s.Wait.mean(), s.Unpack.mean()
		if s.Unpack.Count > 0 && s.Wait.Count == 0 {
			m.WaitUS = max(row.MeanUS-m.SendUS-m.UnpackUS, 0)
		}
		all := 0.0
		for i, w := range copies {
			m.Copies[i].US = w.mean()
			all += w.mean()
		}
		if all > 0 {
			m.CopyRatio = row.MeanUS / all
		}
	}
	err := b.add(row, parts)
	b.rows[len(b.rows)-1].Iters = int64(most)
	return err
}
