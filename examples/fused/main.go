// SPDX-License-Identifier: Apache-2.0

// Fused: kernels that send each tile of a layer as soon as it is computed, beside the same layer with a kernel of its own for
// communication, and beside the form in which the host stands between the two. Package layers has the kernels. Each rank
// compares all that each form leaves with what it computes by itself: 4 ranks here, or "doorbell run -n N -- ./fused".
// What the forms cost: "doorbell bench fused".
package main

import (
	"context"
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/examples/fused/layers"
)

func rank(ctx context.Context, c *doorbell.Comm) error {
	l, err := layers.New(ctx, c, layers.Options{
		Tiles: 16, Width: 256, Depth: 64, Seed: 1,
		Grid: doorbell.Grid{Blocks: 2, Warps: 2, Cooperative: true},
	})
	if err != nil {
		return err
	}
	iter, checked := uint64(0), int64(0)
	for _, work := range layers.Works {
		for _, form := range layers.Forms {
			iter++ // other values each time: none is taken for one of before
			if err := l.Fill(iter); err != nil {
				return err
			}
			if err := l.Run(ctx, work, form); err != nil {
				return err
			}
			n, err := l.Check(work)
			if err != nil {
				return fmt.Errorf("rank %d of %d: %v: %w", c.Rank(), c.Size(), form, err)
			}
			checked += n
		}
	}
	_, err = fmt.Printf("rank %d of %d: %d forms of %d layers, %d bytes compared, all right\n",
		c.Rank(), c.Size(), len(layers.Forms), len(layers.Works), checked)
	return err
}

func main() { doorbell.Main(4, rank) }
