// SPDX-License-Identifier: Apache-2.0

// Package benches runs the benchmarks on the ranks of a job, and verifies what they moved.
//
// Each rank runs the same code. After each part the ranks tell each other what they measured and what they found
// wrong, so that all of them go on, or stop, together; rank 0's result is the one that is shown.
package benches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// Config is what a benchmark is asked to do. It is the same on all ranks.
type Config struct {
	Sizes  []int64
	Iters  int // timed operations per size; 0: as many as fit
	Warmup int // operations before them; -1: the bench chooses
	Seed   uint64
	LSA    bool // ranks of one node store into each other's windows
	// HostWindows has windows in memory of the host, where the network reaches them without a copy and kernels by PCIe.
	HostWindows bool

	Tokens                []int // of each rank, one after another; none: all that the routing's file has
	Hidden, TopK, Experts int
	Format                moe.Format
	PerRank               bool
	Channels, Ring        int // of ht; 0: moe.HTOptions' defaults
	Flush                 int // bytes written before each step that the device's clock times, to empty its caches
	Gating                routing.Pattern
	Routing, Record       string // files

	// Twin is another compiler's code of the ping-pong kernel. It and the built-in one are measured in turn, Pairs times: both
	// on the same windows, and between the same two launches of the other.
	Twin  gpu.Kernel[kernels.Exchange]
	Pairs int

	Step func(done, total int, what string) // shows progress
}

// Run runs the benchmark of that name on one rank.
func Run(ctx context.Context, c *doorbell.Comm, name string, cfg Config) (report.Result, error) {
	run := map[string]func(*bench) error{
		"pingpong": (*bench).pingPong, "bw": (*bench).bandwidth, "rate": (*bench).rate, "alltoall": (*bench).allToAll, "ll": (*bench).lowLatency, "ht": (*bench).highThroughput, "post": (*bench).post,
		"fused": (*bench).fused,
	}[name]
	if run == nil {
		return report.Result{}, fmt.Errorf("bench %q: %w", name, doorbell.ErrNotSupported)
	}
	if cfg.Step == nil {
		cfg.Step = func(int, int, string) {}
	}
	b := &bench{ctx: ctx, c: c, cfg: cfg, info: c.Info()}
	err := run(b)
	r := report.Result{Bench: name, Host: report.Host{Hosts: c.Hosts()}, Rows: b.rows, Verified: err == nil && b.bad == "" && len(b.rows) > 0, Error: b.bad}
	return r, err
}

// bench is one rank's run.
type bench struct {
	ctx  context.Context
	c    *doorbell.Comm
	cfg  Config
	info doorbell.Info

	st         *doorbell.Stream
	dc         *doorbell.DevComm
	send, recv *doorbell.Window
	scratch    *doorbell.Buffer // result, then samples
	base       uint64           // what signal 0 ended at
	checked    int64
	wrong      string // what this rank found wrong in the part that runs
	rows       []report.Row
	bad        string // what was wrong, on any rank
}

// maxSamples is how many round trips of one part are kept apart.
const maxSamples = 1 << 18

// setUp makes the stream, the windows and the device communicator. Collective.
func (b *bench) setUp(sendBytes, recvBytes int, n doorbell.Needs) (err error) {
	b.st = b.c.Stream()
	window := func(bytes int) *doorbell.Window {
		if err != nil {
			return nil
		}
		alloc := b.c.Alloc
		if b.cfg.HostWindows {
			alloc = b.c.AllocHost
		}
		var buf *doorbell.Buffer
		if buf, err = alloc(bytes); err != nil {
			return nil
		}
		var w *doorbell.Window
		w, err = b.c.Register(b.ctx, buf)
		return w
	}
	b.send, b.recv = window(sendBytes), window(recvBytes)
	if err != nil {
		return err
	}
	if b.dc, err = b.c.DevComm(b.ctx, n); err != nil {
		return err
	}
	b.scratch, err = b.c.Alloc(64 + 4*maxSamples)
	return err
}

// result is the memory that kernels leave their result in, cleared.
func (b *bench) result() (gpu.Ptr[kernels.Result], error) {
	return gpu.Cast[kernels.Result](b.scratch.Ptr()), b.scratch.Write(0, make([]byte, 64))
}

// left is what they left there.
func (b *bench) left() (kernels.Result, error) {
	r, err := read[kernels.Result](b, 0, 1)
	if err != nil {
		return kernels.Result{}, err
	}
	return r[0], nil
}

// read copies n values out of the scratch memory.
func read[T any](b *bench, off, n int) ([]T, error) {
	out := make([]T, n)
	return out, doorbell.Read(b.c, out, gpu.Cast[T](b.scratch.Ptr().Byte(uint64(off))))
}

func (b *bench) samples() gpu.Ptr[uint32] { return gpu.Cast[uint32](b.scratch.Ptr().Byte(64)) }

// run launches a kernel and waits for it.
func run[A any](b *bench, k gpu.Kernel[A], g doorbell.Grid, a A) error {
	if err := doorbell.Launch(b.st, k, g, a); err != nil {
		return err
	}
	return b.st.Wait(b.ctx)
}

// measured is run for a kernel that leaves a result.
func measured[A any](b *bench, k gpu.Kernel[A], g doorbell.Grid, a A) (kernels.Result, error) {
	if err := run(b, k, g, a); err != nil {
		return kernels.Result{}, err
	}
	r, err := b.left()
	if err != nil {
		return r, err
	}
	switch {
	case r.Status != gin.OK:
		err := fmt.Errorf("rank %d: %s ended in iteration %d with %v", b.c.Rank(), k.Name(), r.At, r.Status)
		if cause := b.dc.Cause(); cause != nil {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return r, err
	case r.Wrong > 0:
		b.found("%d values wrong, the first seen before number %d", r.Wrong, r.At)
	case r.Done != 1:
		b.found("%s left early at %d", k.Name(), r.At)
	}
	return r, nil
}

// found notes something wrong on this rank.
func (b *bench) found(format string, a ...any) {
	if b.wrong == "" {
		b.wrong = fmt.Sprintf("rank %d: ", b.c.Rank()) + fmt.Sprintf(format, a...)
	}
}

// fill writes what this rank sends: bytes at off of the send window.
func (b *bench) fill(off, bytes int64, iter uint64) error {
	return run(b, kernels.FillKernel, doorbell.Grid{Blocks: 1, Warps: 1}, kernels.FillArgs{Span: kernels.Span{
		At: b.send.Device().Base.Byte(uint64(off)), Bytes: uint64(bytes), Seed: b.cfg.Seed, Iter: iter, First: uint64(off) / 8, Source: int32(b.c.Rank()),
	}})
}

// check compares bytes at off of the receive window with what a rank sent from fromOff of its send window.
func (b *bench) check(off, bytes int64, source int, fromOff int64, iter uint64) error {
	p, err := b.result()
	if err != nil {
		return err
	}
	err = run(b, kernels.CheckKernel, doorbell.Grid{Blocks: 1, Warps: 1}, kernels.CheckArgs{Span: kernels.Span{
		At: b.recv.Device().Base.Byte(uint64(off)), Bytes: uint64(bytes), Seed: b.cfg.Seed, Iter: iter, First: uint64(fromOff) / 8, Source: int32(source),
	}, Result: p})
	if err != nil {
		return err
	}
	r, err := b.left()
	if r.Wrong > 0 {
		b.found("%d of %d bytes from rank %d wrong", r.Wrong, bytes, source)
	}
	b.checked += bytes
	return err
}

// checkSignals compares the signals from id 0 on with what they must be, when all ranks have sent theirs: one too many
// lets a receiver run ahead of its sender, and looks right until the last one comes. Collective; a rank that expects
// nothing gives no values.
func (b *bench) checkSignals(want ...uint64) error {
	if err := b.c.Barrier(b.ctx); err != nil || len(want) == 0 {
		return err
	}
	p := gpu.Cast[uint64](b.scratch.Ptr())
	err := run(b, kernels.SignalsKernel, doorbell.Grid{Blocks: 1, Warps: 1}, kernels.SignalsArgs{DC: b.dc.Device(), Signals: int32(len(want)), Values: p})
	if err != nil {
		return err
	}
	got, err := read[uint64](b, 0, len(want))
	for i := range got {
		if err == nil && got[i] != want[i] {
			b.found("signal %d ended at %d, must be %d", i, got[i], want[i])
		}
	}
	return err
}

// part is what a rank tells the others after a part.
type part struct {
	Wrong   string
	Hist    []byte
	Tail    []byte // of single operations, where Hist is of means
	Ns      uint64 // of the measured operations
	Count   uint64
	MoE     *moePart `json:",omitempty"`
	Posted  posted   // to a NIC
	Checked int64
}

// share tells all ranks how a part went, and returns what all said; what was found wrong is added to b.bad. A rank that
// failed tells nothing: it leaves, so that the others' waits for it end at once.
func (b *bench) share(p part, h *report.Hist, err error) ([]part, error) {
	if err != nil {
		return nil, err
	}
	if h != nil {
		p.Hist, _ = h.AppendBinary(nil)
	}
	p.Checked, p.Wrong = b.checked, b.wrong
	mine, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	all, err := b.c.AllGather(b.ctx, mine)
	if err != nil {
		return nil, err
	}
	parts := make([]part, len(all))
	var wrong []string
	if b.bad != "" {
		wrong = append(wrong, b.bad)
	}
	for r, text := range all {
		if err := json.Unmarshal(text, &parts[r]); err != nil {
			return nil, fmt.Errorf("what rank %d measured: %w", r, err)
		}
		if parts[r].Wrong != "" {
			wrong = append(wrong, parts[r].Wrong)
		}
	}
	b.bad = strings.Join(wrong, "; ")
	b.checked, b.wrong = 0, ""
	return parts, nil
}

// errWrong ends a run in which something was found wrong: the rest would prove nothing.
var errWrong = errors.New("stopped: wrong")

// stop turns errWrong, which b.bad tells of, into a regular end.
func stop(err error) error {
	if errors.Is(err, errWrong) {
		return nil
	}
	return err
}

// row is what all rows of this run have in common.
func (b *bench) row(bytes int64, lsa bool) report.Row {
	r := report.Row{
		Bytes: bytes, Ranks: b.c.Size(), Nodes: b.c.Nodes(), Net: b.info.Net, Backend: b.info.Backend, NIC: b.info.NIC, Device: b.info.Device,
		GPUs: b.info.GPUs, Progress: b.info.Progress,
	}
	if lsa {
		r.Net, r.Backend, r.NIC = "lsa", "lsa", ""
	}
	r.Emulated = r.StandsIn(b.c.Hosts()) || r.NIC != "" && b.info.Emulated
	return r
}

// add makes a row of what all ranks told.
func (b *bench) add(r report.Row, parts []part) error {
	var h, tail report.Hist
	for i, p := range parts {
		r.Iters += int64(p.Count)
		r.CheckedBytes += p.Checked
		for _, x := range []struct {
			to   *report.Hist
			from []byte
		}{{&h, p.Hist}, {&tail, p.Tail}} {
			var one report.Hist
			if len(x.from) == 0 {
				continue
			}
			if err := one.UnmarshalBinary(x.from); err != nil {
				return fmt.Errorf("latencies of rank %d: %w", i, err)
			}
			x.to.Merge(&one)
		}
	}
	if h.Count() > 0 {
		r.P50US, r.P99US, r.MinUS = h.Micros()
		if tail.Count() == 0 {
			tail = h
		}
		r.P99US, r.MaxUS = float64(tail.Quantile(0.99))/1e3, float64(tail.Max())/1e3
	}
	b.rows = append(b.rows, r)
	if b.bad != "" {
		return errWrong
	}
	return nil
}

// iterations agrees on how many operations are timed, given what one took.
func (b *bench) iterations(ns uint64, budget time.Duration) (int, error) {
	mine, err := json.Marshal(max(ns, 1))
	if err != nil {
		return 0, err
	}
	all, err := b.c.AllGather(b.ctx, mine)
	if err != nil {
		return 0, err
	}
	slowest := uint64(1)
	for _, t := range all {
		var v uint64
		if err := json.Unmarshal(t, &v); err != nil {
			return 0, err
		}
		slowest = max(slowest, v)
	}
	if b.cfg.Iters > 0 {
		return min(b.cfg.Iters, maxSamples), nil
	}
	return int(min(max(uint64(budget)/slowest, 8), 50_000)), nil
}

func (b *bench) warmup(def int) int {
	if b.cfg.Warmup >= 0 {
		return max(b.cfg.Warmup, 1)
	}
	return def
}
