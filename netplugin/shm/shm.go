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
	return &endpoint{rank: c.Rank}, nil
}

type region struct {
	mem  []byte
	skew uint64 // address of its first byte modulo 8: signals need 0
}

type endpoint struct {
	rank    int
	regions netplugin.Imports[region]
	closed  atomic.Bool
}

func (e *endpoint) Export(mem []byte, signals bool) ([]byte, error) { return nil, nil }

// Withdraw does nothing: a peer keeps its mapping, and its own Forget ends the use.
func (e *endpoint) Withdraw([]byte) {}

func (e *endpoint) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	if len(k.Map) != k.Size {
		return 0, fmt.Errorf("import region of rank %d on rank %d: %d of its %d bytes are mapped; shm reaches only memory that this process maps",
			peer, e.rank, len(k.Map), k.Size)
	}
	if e.closed.Load() {
		return 0, fmt.Errorf("import region of rank %d on rank %d: the shm endpoint is closed", peer, e.rank)
	}
	m := region{k.Map, skewOf(k.Map)}
	return e.regions.Add(m), nil
}

func (e *endpoint) Forget(r netplugin.Region) { e.regions.Remove(r) }

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
		r := e.region(op.SigDst)
		if !netplugin.InBounds(op.SigOff, 8, uint64(len(r.mem))) {
			return e.bounds("signals", op.Peer, op.SigOff, 8, len(r.mem))
		}
		if (op.SigOff|r.skew)&7 != 0 {
			return e.misaligned(op, r.skew)
		}
		word = wordAt(r.mem, op.SigOff)
	}
	if op.Kind != netplugin.Signal {
		mem := e.region(op.Dst).mem
		n := uint64(len(op.Data))
		if !netplugin.InBounds(op.DstOff, n, uint64(len(mem))) {
			return e.bounds("a window", op.Peer, op.DstOff, n, len(mem))
		}
		switch op.Kind {
		case netplugin.Put:
			copy(mem[op.DstOff:], op.Data)
		case netplugin.Get:
			copy(op.Data, mem[op.DstOff:])
		default:
			return e.unknown(op)
		}
	}
	if word != nil {
		atomic.AddUint64(word, op.SigAdd)
	}
	return nil
}

// region is where r is; one that is none has no bytes.
func (e *endpoint) region(r netplugin.Region) region {
	it, _ := e.regions.Get(r)
	return it
}

func (e *endpoint) bounds(what string, peer int32, off, n uint64, size int) error {
	return fmt.Errorf("shm on rank %d: %d bytes at offset %d of %s of rank %d, which has %d bytes: %w",
		e.rank, n, off, what, peer, size, netplugin.ErrBounds)
}

func (e *endpoint) misaligned(op *netplugin.Op, skew uint64) error {
	return fmt.Errorf("shm on rank %d: signal at offset %d of a region of rank %d that starts %d bytes past a multiple of 8: a multiple of 8 bytes is accepted",
		e.rank, op.SigOff, op.Peer, skew)
}

func (e *endpoint) unknown(op *netplugin.Op) error {
	return fmt.Errorf("shm on rank %d: operation of kind %d to rank %d: put, signal and get are accepted", e.rank, op.Kind, op.Peer)
}

func (e *endpoint) Poll([]netplugin.Completion) int { return 0 }

func (e *endpoint) Close() error {
	if !e.closed.Swap(true) {
		e.regions = netplugin.Imports[region]{}
	}
	return nil
}
