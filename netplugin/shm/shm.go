// SPDX-License-Identifier: Apache-2.0

// Package shm is the network within one machine: it writes straight into the peer's window, through this process's
// mapping of it, and raises signals by atomic adds of the CPU. Ranks of one process and ranks of several processes
// use it alike. It is no network: its figures say so.
//
// Operations take effect in Post, in order. A put is complete at the target when Post returns.
package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/doorbell-net/doorbell/netplugin"
)

func init() { netplugin.Register(Plugin{}) }

// MaxBytes is the largest piece copied in one operation. Core cuts larger puts, so that one of them does not keep the
// progress of others waiting for long: 256 KiB take about 20 us.
const MaxBytes = 256 << 10

// Plugin is the shm network.
type Plugin struct{}

// Name is "shm".
func (Plugin) Name() string { return "shm" }

// Powers are those of a memory copy.
func (Plugin) Powers() netplugin.Powers {
	return netplugin.Powers{Ordered: true, RemoteCompletion: true, Mapped: true, MaxBytes: MaxBytes}
}

// Open makes a rank's endpoint.
func (Plugin) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	if c.Ranks < 1 || c.Rank < 0 || c.Rank >= c.Ranks {
		return nil, fmt.Errorf("open shm: rank %d of %d ranks; 0 to ranks-1 is accepted", c.Rank, c.Ranks)
	}
	return &endpoint{rank: c.Rank, regions: make([]region, 1)}, nil
}

type region struct {
	mem []byte
}

type endpoint struct {
	rank    int
	regions []region // by Region; 0 is none
	free    []netplugin.Region
	closed  atomic.Bool
}

func (e *endpoint) Export(mem []byte, signals bool) ([]byte, error) { return nil, nil }

func (e *endpoint) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	if len(k.Map) != k.Size {
		return 0, fmt.Errorf("import region of rank %d on rank %d: %d of its %d bytes are mapped; shm reaches only memory that this process maps",
			peer, e.rank, len(k.Map), k.Size)
	}
	if n := len(e.free); n > 0 {
		r := e.free[n-1]
		e.free = e.free[:n-1]
		e.regions[r] = region{k.Map}
		return r, nil
	}
	e.regions = append(e.regions, region{k.Map})
	return netplugin.Region(len(e.regions) - 1), nil
}

func (e *endpoint) Forget(r netplugin.Region) {
	if r > 0 && int(r) < len(e.regions) && e.regions[r].mem != nil {
		e.regions[r] = region{}
		e.free = append(e.free, r)
	}
}

func (e *endpoint) Post(ops []netplugin.Op) int {
	for i := range ops {
		op := &ops[i]
		if err := e.one(op); err != nil {
			op.State, op.Err = netplugin.Failed, err
			return i + 1
		}
		op.State = netplugin.Done
	}
	return len(ops)
}

func (e *endpoint) one(op *netplugin.Op) error {
	var word *uint64
	if op.Raise {
		// Looked up before any byte is written: an operation that fails writes nothing here.
		mem := e.mem(op.SigDst)
		if !netplugin.InBounds(op.SigOff, 8, uint64(len(mem))) || op.SigOff&7 != 0 {
			return e.bounds("signal", op.Peer, op.SigOff, 8, len(mem))
		}
		word = wordAt(mem, op.SigOff)
	}
	if op.Kind != netplugin.Signal {
		mem := e.mem(op.Dst)
		n := uint64(len(op.Data))
		if !netplugin.InBounds(op.DstOff, n, uint64(len(mem))) {
			return e.bounds("window", op.Peer, op.DstOff, n, len(mem))
		}
		if op.Kind == netplugin.Put {
			copy(mem[op.DstOff:], op.Data)
		} else {
			copy(op.Data, mem[op.DstOff:])
		}
	}
	if word != nil {
		atomic.AddUint64(word, op.SigAdd)
	}
	return nil
}

func (e *endpoint) mem(r netplugin.Region) []byte {
	if r < 0 || int(r) >= len(e.regions) {
		return nil
	}
	return e.regions[r].mem
}

func (e *endpoint) bounds(what string, peer int32, off, n uint64, size int) error {
	return fmt.Errorf("shm on rank %d: %d bytes at offset %d of a %s of rank %d that has %d: %w",
		e.rank, n, off, what, peer, size, netplugin.ErrBounds)
}

func (e *endpoint) Poll([]netplugin.Completion) int { return 0 }

func (e *endpoint) Close() error {
	if !e.closed.Swap(true) {
		e.regions, e.free = make([]region, 1), nil
	}
	return nil
}
