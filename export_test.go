// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"context"

	"github.com/doorbell-net/doorbell/internal/bootstrap"
	"github.com/doorbell-net/doorbell/internal/device"
)

// Paused runs f, which may block, while nobody moves this rank's data.
func (c *Comm) Paused(ctx context.Context, f func()) error { return c.owner.With(ctx, f) }

// MemoryBytes is what it has taken.
func (dc *DevComm) MemoryBytes() (n int) {
	for _, m := range []device.Memory{dc.seg.net, dc.seg.peer, dc.seg.dev, dc.seg.host} {
		n += m.Handle().Bytes
	}
	return n
}

// Deaf has what fails on its way to a peer be what the network takes it for, whatever the ranks know of each other.
func (c *Comm) Deaf(ctx context.Context) error {
	return c.owner.With(ctx, func() { c.owner.Gone(func(int) bool { return false }) })
}

// OnLost has f called behind what a loss does to the communicator; until it returns no other loss or goodbye is told.
func (c *Comm) OnLost(f func(rank int, cause error)) { c.group.OnLost(f) }

// Kill ends this rank's membership as the death of its process would. What it has in this process lives on.
func (c *Comm) Kill() { bootstrap.Kill(c.group) }
