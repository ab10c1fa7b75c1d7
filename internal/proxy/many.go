// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/sys"
)

// Bounds of a pass over many queues.
const (
	sweepOps  = 8       // operations of a pass for queues that no hint told of
	sweepTime = 100_000 // ns in which the sweep goes round, while that takes less than a quarter of the time
	sweepMost = 25_000  // ns that a pass sweeps at most
)

// takeMany is take for many queues: it compares all hints with what was taken, thirty-two queues to two lines, and looks
// into a share of the queues, so that a lost hint is found. A part of the budget is the share's alone: queues that are
// always announced must not keep it from those that a hint was lost of.
func (o *Owner) takeMany(n, budget int) bool {
	start := sys.Nanotime()
	left := budget - sweepOps
	if first := o.cursor % n; o.announced(first, n, start, &left) {
		o.announced(0, first, start, &left)
	}
	left = max(left, 0) + sweepOps
	full := left
	gone := min(start-o.swept, sweepTime)
	o.swept = start
	share := min(n, n*int(gone)/sweepTime+1)
	for i := range share {
		q := o.queues[(o.sweep+i)%n]
		if i&63 == 63 && sys.Nanotime()-start > sweepMost {
			share = i
			break
		}
		if q.dead || !q.ready() || q.announced() {
			continue
		}
		if left -= o.drain(q, left); left <= 0 {
			share = i + 1 // the rest is first next time
			break
		}
	}
	o.sweep = (o.sweep + share) % n
	return left < full || full < budget
}

// announced takes from those of the queues from .. to-1 that a hint tells of. It is false when the pass ends there.
func (o *Owner) announced(from, to int, start uint64, left *int) bool {
	at := 0
	for _, dc := range o.comms {
		lo, hi := max(from-at, 0), min(to-at, len(dc.queues))
		hints := gpu.Cast[uint64](dc.ABI.Hints)
		for i := lo / 2; 2*i < hi; i++ {
			if 2*i+1 < len(dc.queues) && gpu.Load(hints.At(i), gpu.Relaxed, gpu.ScopeSys) == dc.heads[i] {
				continue // neither has anything new
			}
			for j := max(2*i, lo); j < min(2*i+2, hi); j++ {
				q := dc.queues[j]
				if q.dead || !q.announced() {
					continue
				}
				if *left -= o.drain(q, *left); *left <= 0 || sys.Nanotime()-start > passNs {
					o.cursor = at + j + 1
					return false
				}
			}
		}
		at += len(dc.queues)
	}
	return true
}
