// SPDX-License-Identifier: Apache-2.0

package benches

import "github.com/doorbell-net/doorbell"

func (b *bench) lowLatency() error { return doorbell.ErrNotSupported }
