// SPDX-License-Identifier: Apache-2.0

package moe

import "github.com/doorbell-net/doorbell/gpu"

// Missing is the ranks that take no part: nothing is sent to them, nothing is waited for, and their experts are none.
type Missing struct {
	Ranks gpu.Ptr[uint32] // [rank] not 0 of one that is missing; nil: none is
}

func (m Missing) some() bool { return !m.Ranks.IsNil() }

func (m Missing) has(rank int32) bool { return m.some() && m.Ranks.At(int(rank)).Load() != 0 }
