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

// Kill ends this rank's membership as the death of its process would. What it has in this process lives on.
func (c *Comm) Kill() { bootstrap.Kill(c.group) }
