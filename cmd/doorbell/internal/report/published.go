// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"
)

// Published is a figure that others published, on machines of their own: GPUs and, but within a node, a real network.
type Published struct {
	Bench, Op    string // Op: dispatch or combine of ll and ht; of ht with a known layout, as DeepEP's own tests time it (cached handle)
	Ranks, Nodes int    // ll, ht; tokens, hidden and top-k are publishedTokens, publishedHidden and publishedTopK
	System       string
	US           float64 // 0: not given
	GBps         float64 // by the accounting of MoE.PaperBytes; 0: not given
	Source       int     // in sources
}

// publishedTokens of each rank, by bench.
var publishedTokens = map[string]int{"ll": 128, "ht": 4096}

const (
	publishedHidden = 7168
	publishedTopK   = 8
)

// sources are where published figures come from, what they are of, and what they ran on.
var sources = []string{
	"arXiv 2511.15076, Figure 4: round trip of 4-128 B put + signal, H100, 400G InfiniBand",
	"arXiv 2511.15076, LL with NVLink within a node: 128 tokens a rank, hidden 7168, top-8 of 256 experts, FP8 dispatch, BF16 combine; DGX H100, 8x 400G InfiniBand, NCCL 2.28, NVSHMEM 3.4.5, DeepEP 1.2.1",
	"DeepEP pull request 521 (the paper's port), LL by RDMA alone: same shape, same machines",
	"DeepEP's README, LL: 128 tokens a rank, hidden 7168, top-8, FP8 dispatch, BF16 combine; H800, ConnectX-7 400G; NVLink within a node",
	"arXiv 2511.15076 and DeepEP pull request 521, HT: 4096 tokens a rank, hidden 7168, top-8 of 256 experts in the best 4 nodes, BF16; same machines; GB/s of RDMA, the own node's share counted too",
	"DeepEP's README, HT: 4096 tokens a rank, hidden 7168, top-8 in 4 groups, FP8 dispatch, BF16 combine; H800, ConnectX-7 400G; GB/s of NVLink for 8 ranks, else of RDMA",
}

const (
	paperPingPong = iota
	paperLL
	portLL
	deepEPLL
	paperHT
	deepEPHT
)

// published is every figure that --paper shows. Those of LL dispatch count FP8 bytes, whatever the text beside them says
// of BF16: 185.28 GB/s times 40.62 us are 7.53 MB, the 7,408 B of 1,016 selections.
var published = []Published{
	{Bench: "pingpong", System: "GIN-GDAKI", US: 16.7, Source: paperPingPong},
	{Bench: "pingpong", System: "GIN-Proxy", US: 18.0, Source: paperPingPong},
	{Bench: "pingpong", System: "NVSHMEM-IBRC", US: 16.0, Source: paperPingPong},
	{Bench: "pingpong", System: "NVSHMEM-IBGDA", US: 24.3, Source: paperPingPong},

	{"ll", "dispatch", 8, 1, "GIN", 40.62, 185.28, paperLL},
	{"ll", "dispatch", 8, 1, "NVSHMEM", 41.43, 182.15, paperLL},
	{"ll", "combine", 8, 1, "GIN", 69, 211, paperLL},
	{"ll", "dispatch", 16, 2, "GIN", 142.51, 0, paperLL},
	{"ll", "dispatch", 16, 2, "NVSHMEM", 157.00, 0, paperLL},
	{"ll", "dispatch", 8, 1, "GIN", 160.82, 47.00, portLL},
	{"ll", "dispatch", 8, 1, "NVSHMEM", 160.67, 46.79, portLL},
	{"ll", "combine", 8, 1, "GIN", 302.8, 47.9, portLL},
	{"ll", "dispatch", 16, 2, "GIN", 178.6, 42.2, portLL},
	{"ll", "combine", 16, 2, "GIN", 320.8, 45.3, portLL},
	{"ll", "dispatch", 32, 4, "GIN", 190.1, 39.8, portLL},
	{"ll", "combine", 32, 4, "GIN", 333.2, 43.6, portLL},
	{"ll", "dispatch", 64, 8, "GIN", 218.9, 34.5, portLL},
	{"ll", "combine", 64, 8, "GIN", 351.1, 41.4, portLL},
	{"ll", "dispatch", 8, 1, "DeepEP", 77, 98, deepEPLL},
	{"ll", "combine", 8, 1, "DeepEP", 114, 127, deepEPLL},
	{"ll", "dispatch", 16, 2, "DeepEP", 118, 63, deepEPLL},
	{"ll", "combine", 16, 2, "DeepEP", 195, 74, deepEPLL},
	{"ll", "dispatch", 32, 4, "DeepEP", 155, 48, deepEPLL},
	{"ll", "combine", 32, 4, "DeepEP", 273, 53, deepEPLL},
	{"ll", "dispatch", 64, 8, "DeepEP", 173, 43, deepEPLL},
	{"ll", "combine", 64, 8, "DeepEP", 314, 46, deepEPLL},
	{"ll", "dispatch", 128, 16, "DeepEP", 192, 39, deepEPLL},
	{"ll", "combine", 128, 16, "DeepEP", 369, 39, deepEPLL},
	{"ll", "dispatch", 256, 32, "DeepEP", 194, 39, deepEPLL},
	{"ll", "combine", 256, 32, "DeepEP", 360, 40, deepEPLL},

	{"ht", "dispatch again", 16, 2, "GIN", 0, 84.36, paperHT},
	{"ht", "dispatch again", 16, 2, "NVSHMEM", 0, 84.97, paperHT},
	{"ht", "combine", 16, 2, "GIN", 0, 66.2, paperHT},
	{"ht", "dispatch again", 32, 4, "GIN", 0, 61.7, paperHT},
	{"ht", "combine", 32, 4, "GIN", 0, 62.3, paperHT},
	{"ht", "dispatch again", 64, 8, "GIN", 0, 52.7, paperHT},
	{"ht", "combine", 64, 8, "GIN", 0, 52.9, paperHT},
	{"ht", "dispatch again", 8, 1, "DeepEP", 0, 153, deepEPHT},
	{"ht", "combine", 8, 1, "DeepEP", 0, 158, deepEPHT},
	{"ht", "dispatch again", 16, 2, "DeepEP", 0, 43, deepEPHT},
	{"ht", "combine", 16, 2, "DeepEP", 0, 43, deepEPHT},
	{"ht", "dispatch again", 32, 4, "DeepEP", 0, 58, deepEPHT},
	{"ht", "combine", 32, 4, "DeepEP", 0, 57, deepEPHT},
	{"ht", "dispatch again", 64, 8, "DeepEP", 0, 51, deepEPHT},
	{"ht", "combine", 64, 8, "DeepEP", 0, 50, deepEPHT},
}

// PublishedFor lists the published figures of a bench.
func PublishedFor(bench string) (all []Published) {
	for _, p := range published {
		if p.Bench == bench {
			all = append(all, p)
		}
	}
	return all
}

// besideRow is what was published for the shape of a row, for a table's cell.
func besideRow(bench string, x Row) string {
	if x.MoE == nil || x.MoE.Tokens != publishedTokens[bench] || x.MoE.TopK != publishedTopK {
		return ""
	}
	text := beside(bench, x.Label, x.Ranks, x.Nodes)
	if text != "" && x.MoE.Hidden != publishedHidden {
		text += fmt.Sprintf(" (of hidden %d)", publishedHidden)
	}
	return text
}

// beside is what was published for an operation and a number of ranks.
func beside(bench, op string, ranks, nodes int) string {
	var cells []string
	for _, p := range PublishedFor(bench) {
		if p.Op == op && p.Ranks == ranks && p.Nodes == nodes {
			cells = append(cells, p.figures())
		}
	}
	return strings.Join(cells, "; ")
}

// figures is a figure with its source's number.
func (p Published) figures() string {
	text := p.System
	if p.US > 0 {
		text += " " + decimals(p.US) + " us"
	}
	if p.GBps > 0 {
		text += " " + decimals(p.GBps) + " GB/s"
	}
	return fmt.Sprintf("%s [%d]", text, p.Source+1)
}

// PaperText lists the published figures of a bench for a table's foot, a line for each operation and number of ranks.
func PaperText(bench string) string {
	all := PublishedFor(bench)
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("published, on machines that nothing above compares with:\n")
	var cited []int
	for i, p := range all {
		if !slices.Contains(cited, p.Source) {
			cited = append(cited, p.Source)
		}
		if slices.ContainsFunc(all[:i], func(q Published) bool { return q.Op == p.Op && q.Ranks == p.Ranks && q.Nodes == p.Nodes }) {
			continue // in that one's line
		}
		if p.Op != "" {
			fmt.Fprintf(&b, "  %s, ranks %d, nodes %d: ", p.Op, p.Ranks, p.Nodes)
		} else {
			b.WriteString("  ")
		}
		fmt.Fprintln(&b, beside(bench, p.Op, p.Ranks, p.Nodes))
	}
	for _, s := range cited {
		fmt.Fprintf(&b, "  [%d] %s\n", s+1, sources[s])
	}
	return b.String()
}
