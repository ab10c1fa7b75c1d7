// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"testing"

	"pgregory.net/rapid"
)

// Regions follow one another: each begins at a multiple of 64 where the one before has room for what is put there, and the
// sizes are all that is asked for.
func TestHTLayoutIsDisjoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perNode := rapid.IntRange(1, 8).Draw(t, "per node")
		nodes := rapid.IntRange(1, 6).Draw(t, "nodes")
		ranks := perNode * nodes
		o := HTOptions{
			MaxTokens: rapid.IntRange(1, 5000).Draw(t, "tokens"), Hidden: 8 * rapid.IntRange(1, 1000).Draw(t, "hidden/8"),
			TopK: rapid.IntRange(1, 32).Draw(t, "topk"), Experts: rapid.IntRange(1, 300).Draw(t, "experts"),
			MaxRows: rapid.IntRange(0, 9000).Draw(t, "rows"), Layouts: rapid.IntRange(0, 3).Draw(t, "layouts"),
			NoLSA: rapid.Bool().Draw(t, "no lsa"), Format: Format(rapid.IntRange(0, 3).Draw(t, "format")),
			Channels: rapid.IntRange(0, 40).Draw(t, "channels"), Ring: rapid.SampledFrom([]int{0, 2, 17}).Draw(t, "ring"),
		}
		o.fill(ranks, softChannels)
		l := o.layout(ranks, perNode)
		if l.node*l.nodes != ranks || l.channelRows*o.Channels < o.MaxTokens {
			t.Fatalf("%d nodes of %d, %d channels of %d tokens", l.nodes, l.node, o.Channels, l.channelRows)
		}
		ways, rings := o.Channels*l.nodes, 0
		if l.nodes > 1 {
			rings = o.Channels * l.nodes * o.Ring * max(o.MessageBytes(l.node), o.AnswerBytes())
		}
		end := follow(t, []region{
			{l.rows, o.MaxRows * o.Format.RowBytes(o.Hidden)}, {l.infos, o.MaxRows * (htInfoBytes + 8*o.TopK)},
			{l.outs, o.MaxRows * 2 * o.Hidden}, {l.outWeights, o.MaxRows * 4 * o.TopK}, {l.rings, rings}, {l.stage, rings},
			{l.countsIn, 2 * ranks * 4 * (ranks + o.Channels + l.locals)}, {l.countsOut, 2 * ranks * 4 * (ranks + o.Channels + l.locals)},
		})
		layout := follow(t, []region{
			{0, htPlanBytes}, {l.place, 4 * o.MaxTokens * ranks}, {l.base, 4 * ranks}, {l.routes, 4 * ways * l.channelRows * l.node},
			{l.routed, 4 * ways}, {l.expertRows, 4 * l.locals},
		})
		own := follow(t, []region{
			{l.failed, 4}, {l.told, 8}, {l.state, 64}, {l.ways, 64 * ways}, {l.mine, 4 * (ranks + ways)}, {l.experts, 4 * o.Experts},
			{l.scratch, 2 * o.Channels * o.Format.RowBytes(o.Hidden)}, {l.layouts, o.Layouts * layout},
		})
		if l.window < end || l.layoutBytes < layout || l.own < own {
			t.Fatalf("window %d, layout %d, own %d: need %d, %d, %d", l.window, l.layoutBytes, l.own, end, layout, own)
		}
		needs := o.needs(&l)
		if got, want := o.MemoryBytes(ranks, perNode, "soft"), l.window+l.own+resultBytes+needs.MemoryBytes(ranks, perNode); got != want {
			t.Fatalf("memory %d, must be %d", got, want)
		}
		if g := o.grid(&l); g.Blocks*g.Warps != o.Channels*min(l.nodes, 2) {
			t.Fatalf("%d channels, %d nodes: grid %+v", o.Channels, l.nodes, g)
		}
	})
}

type region struct{ at, bytes int }

// follow returns where the last of them ends.
func follow(t *rapid.T, all []region) (end int) {
	for i, r := range all {
		if r.at < end || r.at%64 != 0 {
			t.Fatalf("region %d begins at %d, the one before ends at %d", i, r.at, end)
		}
		end = r.at + r.bytes
	}
	return end
}
