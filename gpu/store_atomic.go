// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race

package gpu

import "sync/atomic"

func store64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

func store32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }
