// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
)

// postDepth is how deep the queue is, and how many puts a launch posts: it never waits for room.
const (
	postDepth    = 4096
	postLaunches = 16
	postSpan     = 4 << 20 // of the windows
)

// post measures what a put costs the device alone, by each way of sharing a context, with a signal and without.
func (b *bench) post() error {
	bytes := int(max(largest(b.cfg.Sizes), postSpan))
	for i, sharing := range []doorbell.Sharing{doorbell.OneThread, doorbell.SharedByAll} {
		n := doorbell.Needs{Signals: 1, Sharing: sharing, QueueDepth: postDepth}
		var err error
		if i == 0 {
			err = b.setUp(bytes, bytes, n)
		} else {
			b.dc, err = b.c.DevComm(b.ctx, n)
		}
		if err != nil {
			return err
		}
		b.base = 0
		for i, size := range b.cfg.Sizes {
			if size%8 != 0 || size == 0 {
				return fmt.Errorf("bench post: size %d: multiples of 8 are accepted", size)
			}
			b.cfg.Step(i, len(b.cfg.Sizes), report.Size(size))
			for _, signal := range []int32{0, 1} {
				if err := b.postSize(size, sharing, signal); err != nil {
					return stop(err)
				}
			}
		}
	}
	return nil
}

func (b *bench) postSize(size int64, sharing doorbell.Sharing, signal int32) error {
	timed, err := b.posts(size, signal)
	parts, err := b.share(part{Ns: timed.Ns, Count: timed.Count}, nil, err)
	if err != nil {
		return err
	}
	row := b.row(size, false)
	row.Label = "one thread"
	if sharing == doorbell.SharedByAll {
		row.Label = "shared by all"
	}
	if signal != 0 {
		row.Label += ", signal"
	}
	for _, p := range parts {
		if p.Count > 0 {
			row.Mops += float64(p.Count) * 1e3 / float64(p.Ns)
		}
	}
	return b.add(row, parts)
}

// posts runs a pair's check round, whose puts each have a place of their own, and then the timed launches.
func (b *bench) posts(size int64, signal int32) (timed kernels.Result, err error) {
	span := max(postSpan/size, 1) * size
	covered := min(span, size*postDepth) // by each launch
	launches := max(min(postLaunches, b.cfg.Iters/postDepth), 1)
	if b.cfg.Iters == 0 {
		launches = postLaunches
	}
	if _, err := b.postRound(size, span, covered/size, 1, signal, 7); err != nil {
		return timed, err
	}
	if timed, err = b.postRound(size, span, postDepth, launches, signal, 8); err != nil {
		return timed, err
	}
	if b.c.Rank() <= b.peer() {
		return timed, b.checkSignals()
	}
	return timed, b.checkSignals(b.base)
}

// postRound has the lower rank of a pair post so many puts in each of some launches, and the other one compare.
func (b *bench) postRound(size, span, puts int64, launches int, signal int32, iter uint64) (timed kernels.Result, err error) {
	sender, idle := b.c.Rank() < b.peer(), b.peer() == b.c.Rank()
	covered := min(span, size*puts)
	args := func() (kernels.PostArgs, error) {
		x, err := b.exchange(size, int(puts))
		x.LSA = 0
		return kernels.PostArgs{X: x, Span: uint64(span), Step: uint64(size), Signal: signal}, err
	}
	if sender {
		if err := b.fill(0, covered, iter); err != nil {
			return timed, err
		}
		for range launches {
			a, err := args()
			if err != nil {
				return timed, err
			}
			r, err := measured(b, kernels.PostKernel, one, a)
			if err != nil {
				return timed, err
			}
			timed.Ns += r.Ns
			timed.Count += r.Count
		}
	}
	if err := b.c.Barrier(b.ctx); err != nil { // nobody polls beside what is measured
		return timed, err
	}
	if !sender && !idle {
		b.base += uint64(launches)
		if signal != 0 {
			b.base += uint64(launches) * uint64(puts-1)
		}
		a, err := args()
		if err != nil {
			return timed, err
		}
		if _, err := measured(b, kernels.PostKernel, one, a); err != nil {
			return timed, err
		}
		if err := b.check(0, covered, b.peer(), 0, iter); err != nil {
			return timed, err
		}
	}
	return timed, b.c.Barrier(b.ctx) // nobody fills while somebody compares
}
