// SPDX-License-Identifier: Apache-2.0

package doorbell

import "context"

// Paused runs f, which may block, while nobody moves this rank's data.
func (c *Comm) Paused(ctx context.Context, f func()) error { return c.owner.With(ctx, f) }
