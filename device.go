// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"fmt"
	"os"
	"runtime"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/soft"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/netplugin"
)

// ErrNotAvailable is what the error of a call wraps that asks for a device that is not here.
var ErrNotAvailable = device.ErrNotAvailable

// place is where a rank runs: which ranks share what with it.
type place struct {
	alloc     soft.Allocator
	processes int // of this job on this machine
	ranks     int // of this process
}

// crowded says whether more ranks of this process wait, or more threads of the job on this machine, than there are processors.
func (p place) crowded(busy int) (process, machine bool) {
	return p.alloc == soft.Heap && p.ranks > min(runtime.GOMAXPROCS(0), runtime.NumCPU()), busy > runtime.NumCPU()
}

// together is how many ranks run at once where not all do, 0 where all do.
func (p place) together(busy int) int {
	process, machine := p.crowded(busy)
	switch {
	case process:
		return min(runtime.GOMAXPROCS(0), runtime.NumCPU())
	case machine:
		return max(runtime.NumCPU()*p.processes/busy, 1)
	}
	return 0
}

// deal is which GPU a rank of this process runs on, of so many, and how many ranks do.
func (p place) deal(rank, gpus int) (on cuda.Choice, share int) {
	first := func(gpu int) int { return (gpu*p.ranks + gpus - 1) / gpus }
	gpu := rank * gpus / p.ranks
	return cuda.Index(gpu), first(gpu+1) - first(gpu)
}

// openDevice makes the rank's device. busy is how many threads of the job poll on this machine.
func (o *Options) openDevice(p place, busy int) (device.Device, error) {
	if o.Device != "cuda" {
		process, machine := p.crowded(busy)
		far, err := env.Far.Get(os.LookupEnv)
		if err != nil {
			return nil, err
		}
		return soft.New(soft.Options{Allocator: p.alloc, Far: far, CrowdedProcess: process, CrowdedMachine: machine, OwnProcess: p.alloc != soft.Heap}), nil
	}
	choice, share := cuda.ByLocalRank, 1
	if p.alloc == soft.Heap {
		choice, share = p.deal(o.Rank, o.LocalGPUs)
	}
	starts, err := env.CUDAStarts.Get(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	multimem, err := env.Multimem.Get(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	if multimem {
		o.Log.Warn("NVLink multicast is on: it has run on no GPU, and can put GPUs out of service where their fabric is not set up for it", "variable", env.Multimem.Name())
	}
	d, err := cuda.Open(cuda.Options{GPU: choice, LocalRank: o.LocalRank, Ranks: share, Rank: o.Rank, Starts: starts, Multimem: multimem, Shared: p.alloc == soft.Shared, Timeout: o.Timeout, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("rank %d: %w", o.Rank, err)
	}
	return d, nil
}

// copier is what a network of the device's copy engines queues on; nil where the host reaches the device's memory.
func (c *Comm) copier() func() (netplugin.Copier, error) {
	if c.dev.Powers().HostView {
		return nil
	}
	return func() (netplugin.Copier, error) { return &copier{Stream: c.dev.NewCopyStream(), dev: c.dev}, nil }
}

// copier is a stream without kernels.
type copier struct {
	device.Stream
	dev  device.Device
	near device.Memory // where copies that Reach queues go, nil before the first
}

// reachBytes is how much of another device's memory Reach copies: as much as streams are made ready with.
const reachBytes = 64 << 10

func (q *copier) Reach(far gpu.Ptr[byte], bytes int) (err error) {
	if q.near == nil {
		if q.near, err = q.dev.Alloc(reachBytes); err != nil {
			return err
		}
	}
	return q.Copy(q.near.Ptr(), far, min(bytes, reachBytes))
}

func (q *copier) Close() error {
	err := q.Stream.Close()
	if q.near != nil && err == nil {
		err = q.near.Free()
	}
	return err
}

func (q *copier) Pinned(bytes int) ([]byte, func() error, error) {
	m, err := q.dev.AllocHost(bytes)
	if err != nil {
		return nil, nil, err
	}
	return m.Bytes(), m.Free, nil
}
