// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

// OnDevice is a plugin as a device with copy engines would have it: its endpoints get doubles of the device's queues, whose
// copies and stores happen later, some each time that somebody polls. Ranks of even and of odd numbers are on two devices. One
// value serves the ranks of one world.
type OnDevice struct {
	netplugin.Plugin
	// Far takes windows, and payloads that do not come by value, for device memory: the plugin is given addresses only.
	Far bool

	mu      sync.Mutex
	queues  []*copies
	signals map[gpu.Ptr[byte]]bool // where words of signals lie, which are never far
}

// Open makes an endpoint with queues.
func (p *OnDevice) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	c.Copier = func() (netplugin.Copier, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		q := new(copies)
		p.queues = append(p.queues, q)
		return q, nil
	}
	e, err := p.Plugin.Open(c)
	if err != nil {
		return nil, err
	}
	on := &onDevice{Endpoint: e, of: p, rank: c.Rank}
	if n, ok := e.(netplugin.Connector); ok {
		return struct {
			*onDevice
			netplugin.Connector
		}{on, n}, nil
	}
	return on, nil
}

// Break has the device fail: each call of a queue returns err from now on, and nothing that is queued happens.
func (p *OnDevice) Break(err error) {
	for _, q := range p.all() {
		q.mu.Lock()
		q.broken = err
		q.mu.Unlock()
	}
}

func (p *OnDevice) all() []*copies {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queues
}

// onDevice is an endpoint whose world's queues get on when it is polled.
type onDevice struct {
	netplugin.Endpoint
	of   *OnDevice
	rank int
	ops  []netplugin.Op // as they are handed on
}

// inlineBytes is what a put's value has at most.
const inlineBytes = 256

func (e *onDevice) Export(mem []byte, signals bool) ([]byte, error) {
	if signals {
		e.of.mu.Lock()
		defer e.of.mu.Unlock()
		if e.of.signals == nil {
			e.of.signals = map[gpu.Ptr[byte]]bool{}
		}
		e.of.signals[gpu.PtrOf(mem)] = true
	} else if x, ok := e.Endpoint.(netplugin.DeviceExporter); ok && e.of.Far {
		return x.ExportDevice(gpu.PtrOf(mem), len(mem))
	}
	return e.Endpoint.Export(mem, signals)
}

func (e *onDevice) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	e.of.mu.Lock()
	near := !e.of.Far || e.of.signals[gpu.PtrOf(k.Map)]
	e.of.mu.Unlock()
	if !near && len(k.Map) == k.Size && k.Size > 0 {
		k.Dev, k.Map, k.Elsewhere = gpu.PtrOf(k.Map), nil, (peer-e.rank)%2 != 0
	}
	return e.Endpoint.Import(peer, k)
}

func (e *onDevice) Post(ops []netplugin.Op) int {
	if !e.of.Far {
		return e.Endpoint.Post(ops)
	}
	e.ops = append(e.ops[:0], ops...) // copies: who waits for the operations may look at them meanwhile
	for i := range e.ops {
		// Values stay host bytes without an address; a copy engine has to be given pinned ones.
		op := &e.ops[i]
		if data := op.Data; op.Kind == netplugin.Get || len(data) > inlineBytes/2 {
			if op.Src = gpu.PtrOf(data); len(data)%3 != 0 {
				op.Data, op.Bytes = nil, len(data)
			}
		}
	}
	n := e.Endpoint.Post(e.ops)
	for i, op := range e.ops[:n] {
		ops[i].State, ops[i].Err = op.State, op.Err
	}
	return n
}

func (e *onDevice) Poll(done []netplugin.Completion) int {
	for _, q := range e.of.all() {
		q.some(false)
	}
	return e.Endpoint.Poll(done)
}

func (e *onDevice) Withdraw(export []byte) {
	e.meanwhile(func() { e.Endpoint.Withdraw(export) })
}

func (e *onDevice) Forget(r netplugin.Region) { e.meanwhile(func() { e.Endpoint.Forget(r) }) }

// meanwhile has the queues get on while f waits for them, as a device's do by themselves.
func (e *onDevice) meanwhile(f func()) {
	ended := make(chan struct{})
	go func() {
		f()
		close(ended)
	}()
	for {
		select {
		case <-ended:
			return
		default:
			for _, q := range e.of.all() {
				q.some(true)
			}
			runtime.Gosched()
		}
	}
}

// copies is a double of a device's queue.
type copies struct {
	mu         sync.Mutex
	items      [8 << 10]item
	head, tail int
	turn       int
	broken     error
}

type item struct {
	dst, src gpu.Ptr[byte]
	bytes    int // -1: store
	at       gpu.Ptr[uint64]
	value    uint64
}

func (q *copies) push(i item) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.broken != nil {
		return q.broken
	}
	if q.tail-q.head == len(q.items) {
		return errors.New("the double is full")
	}
	q.items[q.tail%len(q.items)] = i
	q.tail++
	return nil
}

func (q *copies) Copy(dst, src gpu.Ptr[byte], bytes int) error {
	return q.push(item{dst: dst, src: src, bytes: bytes})
}

// Copies queues them the other way round: a device may do them in any order.
func (q *copies) Copies(dst, src []gpu.Ptr[byte], bytes []uint64) error {
	for i := range slices.Backward(dst) {
		if err := q.Copy(dst[i], src[i], int(bytes[i])); err != nil {
			return err
		}
	}
	return nil
}

// Through is a copy.
func (q *copies) Through(dst, src gpu.Ptr[byte], bytes int, _ gpu.Ptr[byte], _ int, _ bool) error {
	return q.Copy(dst, src, bytes)
}

// Reach queues a copy of nothing: nobody looks at it, and its owner may be writing there.
func (q *copies) Reach(gpu.Ptr[byte], int) error { return q.push(item{}) }

func (q *copies) Store(at gpu.Ptr[uint64], v uint64) error {
	return q.push(item{bytes: -1, at: at, value: v})
}

func (q *copies) StoreBoth(first gpu.Ptr[uint64], value uint64, second gpu.Ptr[uint64], then uint64) error {
	if err := q.Store(first, value); err != nil {
		return err
	}
	return q.Store(second, then)
}

// some does a few items, of a changing number.
func (q *copies) some(all bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turn++
	for n := q.turn % 4; q.broken == nil && q.head != q.tail && (all || n > 0); n-- {
		if i := &q.items[q.head%len(q.items)]; i.bytes < 0 {
			gpu.Store(i.at, i.value, gpu.Release, gpu.ScopeSys)
		} else {
			copy(gpu.Slice(i.dst, i.bytes), gpu.Slice(i.src, i.bytes))
		}
		q.head++
	}
}

func (q *copies) Pinned(bytes int) ([]byte, func() error, error) {
	words := make([]uint64, (bytes+7)/8)
	return gpu.Slice(gpu.Cast[byte](gpu.PtrTo(&words[0])), bytes), func() error {
		clear(words) // who looks there afterwards learns nothing
		return nil
	}, nil
}

func (q *copies) Close() error {
	q.some(true)
	return nil
}
