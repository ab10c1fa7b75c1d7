// SPDX-License-Identifier: Apache-2.0

package moe

import "github.com/doorbell-net/doorbell/gpu"

// takeRows counts what a dispatch brings to each local expert, by the threads that plan stores it with.
func (a *HT) takeRows(t gpu.Thread) {
	first, end := a.experts(a.DC.Rank, 1)
	for e := t.Index(); e < end-first; e += t.Threads() {
		a.Meter.took(e, uint32(a.Selections.At(int(e)).Load()))
	}
}

// tally counts the rows of so many bytes that a channel's warp has stored at this node's ranks, or read there for a combine:
// from where they went, so that whoever moves them counts nothing.
func (a *HT) tally(t gpu.Thread, channel, role int32, bytes uint64) {
	if !a.Meter.on() {
		return
	}
	t.SyncWarp()
	n := uint32(0)
	if role == 0 {
		token, end := a.channel(channel)
		for i := token*a.Node + t.Lane(); i < end*a.Node; i += gpu.WarpSize {
			if a.Place.At(int(i/a.Node)*int(a.DC.Ranks)+int(a.near(i%a.Node))).Load() >= 0 {
				n++
			}
		}
	} else {
		for node := range a.nodes() {
			w := way{channel: channel, node: node}
			all := a.routed(&w)
			rows := a.route(&w, uint64(all))
			for i := t.Lane(); i < all*a.Node; i += gpu.WarpSize {
				if rows.At(int(i)).Load() >= 0 {
					n++
				}
			}
		}
	}
	for mask := int32(gpu.WarpSize / 2); mask > 0; mask /= 2 {
		n += gpu.ShflXor(t, n, mask)
	}
	a.Meter.note(t, true, n, bytes, 0)
}
