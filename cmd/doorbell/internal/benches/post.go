// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// postDepth is how deep the queue is, and how many puts a launch posts: it never waits for room.
const (
	postDepth    = 4096
	postLaunches = 16
	postSpan     = 4 << 20 // of the windows
	postBatch    = 16      // puts of a doorbell where they are aggregated
	postTogether = 32      // of a launch there are a multiple, where they are posted together: of postBatch, and of a warp's lanes
)

// postWay is how puts are posted.
type postWay struct {
	label  string
	signal int32 // 1: each put has one
	batch  uint32
	lanes  bool // all lanes of a warp post together
}

// postWays are those of a context that is shared so. Only a NIC has a doorbell that several puts share.
func (b *bench) postWays(sharing doorbell.Sharing, size int64) []postWay {
	ways := []postWay{{label: "one thread"}}
	if sharing == doorbell.SharedByAll {
		ways[0].label = "shared by all"
	}
	if b.info.NIC != "" && size*postTogether <= postSpan {
		ways = append(ways, postWay{label: fmt.Sprintf("%s, %d a doorbell", ways[0].label, postBatch), batch: postBatch})
		if sharing == doorbell.SharedByAll && (b.info.Device == "cuda" || gpu.WarpSize > 1) {
			ways = append(ways, postWay{label: "lanes of a warp", batch: 1, lanes: true})
		}
	}
	for _, w := range ways {
		w.label, w.signal = w.label+", signal", 1
		ways = append(ways, w)
	}
	return ways
}

// launch posts the puts of a, and waits for them.
func (w *postWay) launch(b *bench, a kernels.PostArgs) (kernels.Result, error) {
	if w.batch == 0 {
		return measured(b, kernels.PostKernel, one, a)
	}
	args := kernels.BatchArgs{Post: a, Batch: w.batch}
	if w.lanes {
		args.Lanes = 1
	}
	return measured(b, kernels.BatchKernel, one, args)
}

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
			for _, w := range b.postWays(sharing, size) {
				if err := b.postSize(size, w); err != nil {
					return stop(err)
				}
			}
		}
	}
	return nil
}

func (b *bench) postSize(size int64, w postWay) error {
	timed, err := b.posts(size, &w)
	parts, err := b.share(timed, nil, err)
	if err != nil {
		return err
	}
	row := b.row(size, false)
	row.Label = w.label
	var puts uint64
	var all posted
	for _, p := range parts {
		if p.Count > 0 {
			row.Mops += float64(p.Count) * 1e3 / float64(p.Ns)
			puts, all = puts+p.Count, posted{all.Bells + p.Posted.Bells, all.WQEs + p.Posted.WQEs}
		}
	}
	if b.info.NIC != "" {
		row.PerPut = all.per(puts)
	}
	return b.add(row, parts)
}

// posted is what a queue pair was given.
type posted struct{ Bells, WQEs uint64 }

// per is that of each put. A WQE is as many stores as it has words, a doorbell one to its record and one to its register.
func (p posted) per(puts uint64) *report.PerPut {
	n := float64(puts)
	return &report.PerPut{
		Doorbells: float64(p.Bells) / n, WQEBytes: float64(wqe.Bytes*p.WQEs) / n, Stores: float64(wqe.Words*p.WQEs+2*p.Bells) / n,
	}
}

// posted is what the queue pair to this rank's peer was given so far.
func (b *bench) posted() (posted, error) {
	if b.info.NIC == "" {
		return posted{}, nil
	}
	result, err := b.result()
	if err != nil {
		return posted{}, err
	}
	r, err := measured(b, kernels.PostedKernel, one, kernels.PostedArgs{DC: b.dc.Device(), Result: result, Queue: int32(b.peer())})
	return posted{r.Count, r.At}, err
}

// posts runs a pair's check round, whose puts each have a place of their own, and then the timed launches.
func (b *bench) posts(size int64, w *postWay) (timed part, err error) {
	span := max(postSpan/size, 1) * size
	each := min(span/size, postDepth)
	if w.batch > 0 {
		each -= each % postTogether
	}
	launches := max(min(postLaunches, b.cfg.Iters/postDepth), 1)
	if b.cfg.Iters == 0 {
		launches = postLaunches
	}
	if _, err := b.postRound(size, span, each, 1, w, 7); err != nil {
		return timed, err
	}
	if timed, err = b.postRound(size, span, postDepth, launches, w, 8); err != nil {
		return timed, err
	}
	if b.c.Rank() <= b.peer() {
		return timed, b.checkSignals()
	}
	return timed, b.checkSignals(b.base)
}

// postRound has the lower rank of a pair post so many puts in each of some launches, and the other one compare.
func (b *bench) postRound(size, span, puts int64, launches int, w *postWay, iter uint64) (timed part, err error) {
	sender, idle := b.c.Rank() < b.peer(), b.peer() == b.c.Rank()
	covered := min(span, size*puts)
	args := func() (kernels.PostArgs, error) {
		x, err := b.exchange(size, int(puts))
		x.LSA = 0
		return kernels.PostArgs{X: x, Span: uint64(span), Step: uint64(size), Signal: w.signal}, err
	}
	if sender {
		if err := b.fill(0, covered, iter); err != nil {
			return timed, err
		}
		before, err := b.posted()
		if err != nil {
			return timed, err
		}
		for range launches {
			a, err := args()
			if err != nil {
				return timed, err
			}
			r, err := w.launch(b, a)
			if err != nil {
				return timed, err
			}
			timed.Ns += r.Ns
			timed.Count += r.Count
		}
		after, err := b.posted()
		if err != nil {
			return timed, err
		}
		timed.Posted = posted{after.Bells - before.Bells, after.WQEs - before.WQEs}
		if w.signal == 0 && b.info.NIC != "" { // each launch ends with a signal
			timed.Posted.Bells -= uint64(launches)
			timed.Posted.WQEs -= uint64(launches)
		}
	}
	if err := b.c.Barrier(b.ctx); err != nil { // nobody polls beside what is measured
		return timed, err
	}
	if !sender && !idle {
		b.base += uint64(launches)
		if w.signal != 0 {
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
