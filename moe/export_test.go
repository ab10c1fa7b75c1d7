// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
)

// Staging is where messages are made before they are put.
func (b *Buffer) Staging() *doorbell.Buffer { return b.send.Buffer() }

// TopOf is the largest of the magnitudes of eight BF16 as kernels find it on a GPU.
func TopOf(v gpu.U32x4) uint32 { return max(topOf(v), aboveInfinity) - aboveInfinity }

// Senders is how many warps of a dispatch send, each tokens of one channel or of several.
func (h *HTBuffer) Senders() int {
	g := h.opt.sendGrid(&h.lay)
	return g.Blocks * g.Warps / min(h.lay.nodes, 2)
}
