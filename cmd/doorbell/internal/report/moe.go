// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"strings"
)

// MoE is what a row of ll or ht says of its dispatch or combine. Counts and bytes are of all ranks together, in one
// operation; times are means over operations and ranks, in microseconds.
type MoE struct {
	Machine string `json:"machine"` // where it ran: such figures say nothing of another one
	Tokens  int    `json:"tokens"`  // of a rank, the most
	Hidden  int    `json:"hidden"`
	TopK    int    `json:"topk"`
	Experts int    `json:"experts"`
	Layers  int    `json:"layers"` // recorded ones, replayed in turn; counts are means over them
	DType   string `json:"dtype"`  // on the way to the experts
	Wire    string `json:"wire"`   // what a message is for: each expert of a token, each rank or each node that has some

	Selections int64 `json:"selections"`
	// By the accounting of published figures, what stays on the rank included; GBps is PaperBytes. Of ll Row.Bytes for each
	// selection. Of ht Row.Bytes for each token and node that it goes to (RDMA), and for each token and rank (NVLink); published
	// is the former where there are several nodes, else the latter.
	PaperBytes  int64 `json:"paper_bytes"`
	RDMABytes   int64 `json:"rdma_bytes,omitempty"`
	NVLinkBytes int64 `json:"nvlink_bytes,omitempty"`
	// What is truly moved. Of ht messages go between nodes, and rows within one: a dispatch stores them, a combine reads them.
	MessageBytes int64 `json:"message_bytes"` // of one message
	Messages     int64 `json:"messages"`      // puts; of ll also what is stored
	RowBytes     int64 `json:"row_bytes,omitempty"`
	Rows         int64 `json:"rows,omitempty"`
	Signals      int64 `json:"signals,omitempty"` // not counted of ht, which signals as chunks come
	OwnBytes     int64 `json:"own_bytes"`         // to the rank itself
	LSABytes     int64 `json:"lsa_bytes"`         // stored into windows of other ranks, or read there
	NetworkBytes int64 `json:"network_bytes"`     // put to other ranks: what crosses the network

	// Clock is "device" where it timed operations, without the host's part of launches and with its caches emptied before each;
	// empty: the host did.
	Clock string `json:"clock,omitempty"`

	// Stages, measured in rounds of their own. Of ll all have sent before anybody receives, and wait is what is left of the mean
	// operation. Of ht's dispatch they are by the device's clock, and layout is until all ranks have told each other theirs.
	LayoutUS float64 `json:"layout_us,omitempty"`
	SendUS   float64 `json:"send_us,omitempty"`
	WaitUS   float64 `json:"wait_us,omitempty"`
	UnpackUS float64 `json:"unpack_us,omitempty"`

	// Copies are the memcpys that the algorithm needs, in rounds of their own beside the operations: all ranks do theirs at
	// once, and the time is that until all have.
	Copies    []Copy  `json:"copies,omitempty"`
	CopyRatio float64 `json:"copy_ratio,omitempty"` // of the mean operation to all of Copies

	PerRank []RankTimes `json:"per_rank,omitempty"`
}

// Copy is a memcpy, done so many times.
type Copy struct {
	What  string  `json:"what"`
	Times int64   `json:"times"` // on all ranks together
	Bytes int64   `json:"bytes"` // each
	US    float64 `json:"us"`    // of all of them
}

// RankTimes are one rank's times, in microseconds.
type RankTimes struct {
	Rank int     `json:"rank"`
	Mean float64 `json:"mean_us"`
	Min  float64 `json:"min_us"`
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	Max  float64 `json:"max_us"`
}

// round leaves six significant digits of each figure, as in all of a row.
func (m *MoE) round() *MoE {
	if m == nil {
		return nil
	}
	c := *m
	for _, f := range []*float64{&c.LayoutUS, &c.SendUS, &c.WaitUS, &c.UnpackUS, &c.CopyRatio} {
		*f = figure(*f)
	}
	c.Copies, c.PerRank = nil, nil
	for _, x := range m.Copies {
		x.US = figure(x.US)
		c.Copies = append(c.Copies, x)
	}
	for _, r := range m.PerRank {
		c.PerRank = append(c.PerRank, RankTimes{r.Rank, figure(r.Mean), figure(r.Min), figure(r.P50), figure(r.P99), figure(r.Max)})
	}
	return &c
}

// maxRankLines is how many ranks' times a table shows; the JSON has all.
const maxRankLines = 8

// writeMoE writes what a row says beyond its line in the table, with each rank's times or without.
func writeMoE(w io.Writer, x Row, ranks bool) {
	m := x.MoE
	shape := fmt.Sprintf("%d tokens a rank, hidden %d, top-%d of %d experts, %s, a message for each %s", m.Tokens, m.Hidden, m.TopK, m.Experts, m.DType, m.Wire)
	if m.Layers > 1 {
		shape += fmt.Sprintf(", %d layers in turn", m.Layers)
	}
	fmt.Fprintf(w, "%s: %s; on %s\n", x.Label, shape, m.Machine)
	if m.Clock != "" {
		fmt.Fprintf(w, "  timed by the %s's clock, with its caches emptied before each step\n", m.Clock)
	}
	m.writeBytes(w, x.Bytes)
	var stages []string
	for _, stage := range []struct {
		name string
		us   float64
	}{{"layout", m.LayoutUS}, {"send", m.SendUS}, {"wait", m.WaitUS}, {"unpack", m.UnpackUS}} {
		if stage.us > 0 {
			stages = append(stages, stage.name+" "+decimals(stage.us)+" us")
		}
	}
	if len(stages) > 0 {
		fmt.Fprintf(w, "  stages: %s\n", strings.Join(stages, ", "))
	}
	if m.CopyRatio > 0 {
		var copies []string
		for _, c := range m.Copies {
			copies = append(copies, fmt.Sprintf("%s %d x %d B in %s us", c.What, c.Times, c.Bytes, decimals(c.US)))
		}
		fmt.Fprintf(w, "  memcpys that it needs: %s; the operation takes %sx that\n", strings.Join(copies, ", "), decimals(m.CopyRatio))
	}
	if !ranks {
		return
	}
	for i, r := range m.PerRank {
		if i == maxRankLines {
			fmt.Fprintf(w, "  and %d ranks more, which --json shows\n", len(m.PerRank)-i)
			break
		}
		fmt.Fprintf(w, "  rank %d: mean %s us, min %s, p50 %s, p99 %s, max %s\n", r.Rank, decimals(r.Mean), decimals(r.Min), decimals(r.P50), decimals(r.P99), decimals(r.Max))
	}
}

// writeBytes writes what is counted of an operation, each time so many bytes, and what is moved.
func (m *MoE) writeBytes(w io.Writer, each int64) {
	counted := fmt.Sprintf("%d B x %d selections, the own rank's included: %s", each, m.Selections, Size(m.PaperBytes))
	moved := fmt.Sprintf("%d messages of %d B, %d signals", m.Messages, m.MessageBytes, m.Signals)
	switch {
	case m.RowBytes == 0: // ll
	case m.MessageBytes == 0: // one node
		counted = fmt.Sprintf("%d B for each token and rank that it goes to, the own included: NVLink %s", each, Size(m.NVLinkBytes))
		moved = fmt.Sprintf("%d rows of %d B", m.Rows, m.RowBytes)
	default:
		counted = fmt.Sprintf("%d B for each token and node that it goes to, the own included: RDMA %s (for each rank: NVLink %s)", each, Size(m.RDMABytes), Size(m.NVLinkBytes))
		moved = fmt.Sprintf("%d messages of %d B between nodes, %d rows of %d B within", m.Messages, m.MessageBytes, m.Rows, m.RowBytes)
	}
	fmt.Fprintf(w, "  GB/s counts, as published figures do, %s\n", counted)
	fmt.Fprintf(w, "  moved: %s; within the own rank %s, by LSA %s, over the network %s\n", moved, Size(m.OwnBytes), Size(m.LSABytes), Size(m.NetworkBytes))
}
