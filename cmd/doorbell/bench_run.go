// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	core "github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/benches"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/internal/launchenv"
	"github.com/doorbell-net/doorbell/internal/proxy"
	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/moe/routing"
	_ "github.com/doorbell-net/doorbell/netplugin/fault"
)

// flushBytes is several times the caches of any GPU: an H200 has 50 MiB.
const flushBytes = 256 << 20

// runBench runs one bench on the ranks of this process: on all of them with cfg.Local, on one otherwise.
//
// The result counts only on rank 0 (and with cfg.Local); its Bench, Config and Host are filled in by the caller when
// empty. An error goes with whatever rows there are, and makes the result unverified. Wrong bytes, signals or counters
// are no error: they are Verified false, with what was wrong in Error. It ends soon after ctx does.
func runBench(ctx context.Context, name string, cfg benchConfig) (report.Result, error) {
	o := core.Options{
		Net: cfg.Net, Backend: cfg.Backend, Device: cfg.Device, Progress: cfg.Progress, RanksPerNode: cfg.RanksPerNode,
		Timeout: cfg.Timeout, Inject: cfg.Inject, LocalGPUs: cfg.GPUs,
	}
	if o.Inject != "" {
		o.Net = "fault+" + o.Net
	}
	bc := benches.Config{
		HostWindows: cfg.Windows == "host",
		Sizes:       cfg.Sizes, Iters: cfg.Iters, Warmup: cfg.Warmup, Seed: cfg.Seed, LSA: cfg.LSA, Tokens: cfg.Tokens, Hidden: cfg.Hidden,
		TopK: cfg.TopK, Experts: cfg.Experts, Format: cfg.format(), PerRank: cfg.Wire == "rank", Channels: cfg.Channels, Ring: cfg.Ring, Routing: cfg.Routing, Record: cfg.Record, Flush: flushBytes, Step: cfg.Step,
	}
	if cfg.Gating != "" {
		var err error
		if bc.Gating, err = routing.ParsePattern(cfg.Gating); err != nil {
			return report.Result{}, usagef("--gating: %w", err)
		}
	}
	if err := bindRank(cfg); err != nil {
		return report.Result{}, err
	}
	if cfg.PTX != "" {
		var err error
		if bc.Pairs = cfg.Pairs; bc.Pairs > 0 {
			bc.Twin, err = twinOf(kernels.PingPongKernel, kernels.PingPong, cfg.PTX)
		} else {
			err = takeKernels(cfg.PTX)
		}
		if err != nil {
			return report.Result{}, usagef("--ptx: %w", err)
		}
	}
	var comms []*core.Comm
	var err error
	if cfg.Local {
		comms, err = core.Local(cfg.Ranks, o)
	} else {
		var c *core.Comm
		c, err = core.Open(ctx, o)
		comms = []*core.Comm{c}
	}
	if err != nil {
		if errors.Is(err, core.ErrNotSupported) || errors.Is(err, core.ErrNotAvailable) {
			err = unavailablef("%w", err)
		}
		return report.Result{}, err
	}
	type outcome struct {
		rank int
		r    report.Result
		err  error
	}
	ends := make(chan outcome, len(comms))
	for i, c := range comms {
		stop := context.AfterFunc(ctx, func() { c.Abort(context.Cause(ctx)) })
		defer stop()
		go func() {
			rc := bc
			if i > 0 {
				rc.Step = nil
			}
			r, err := benches.Run(ctx, c, name, rc)
			if errors.Is(err, core.ErrNotSupported) {
				err = unavailablef("%w", err)
			}
			if err != nil {
				err = errors.Join(err, c.Close()) // the others' waits for it end
			}
			ends <- outcome{i, r, err}
		}()
	}
	var result report.Result
	for range comms {
		e := <-ends
		if e.rank == 0 {
			result = e.r
		}
		err = errors.Join(err, e.err)
	}
	for _, c := range comms {
		err = errors.Join(err, c.Close())
	}
	return result, err
}

// bindRank binds a rank that is a process to one core, in turn by local rank, as the C peers that it is compared with
// are: a pair that shares a core measures the kernel's scheduler. Ranks with a progress thread have two busy threads and
// are left to the kernel.
func bindRank(cfg benchConfig) error {
	if cfg.Local || !cfg.Bind || cfg.Progress == "thread" || cfg.me == nil || cfg.me.LocalRank < 0 {
		return nil
	}
	rank := cfg.me.LocalRank
	cpus, err := sys.CPUs()
	if err != nil {
		return nil // another system: its scheduler decides
	}
	processes := cfg.Ranks
	if cfg.me.LocalSize > 0 {
		processes = cfg.me.LocalSize
	}
	if cfg.me.Launcher == launchenv.Doorbell && cfg.Nodes > 1 {
		rank = cfg.me.Rank // as good on hosts of their own, and right where they are namespaces of one machine
	}
	if progress, err := proxy.ParseMode(cfg.Progress); err != nil || proxy.Choose(progress, len(cpus), processes) == proxy.Thread {
		return err
	}
	return sys.Bind(cpus[rank%len(cpus)])
}
