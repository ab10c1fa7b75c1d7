// SPDX-License-Identifier: Apache-2.0

package ce

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/plugintest"
)

// lazy is a double of a device's queue: what is queued happens later, some of it each time that somebody polls.
type lazy struct {
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

func (q *lazy) push(i item) error {
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

func (q *lazy) Copy(dst, src gpu.Ptr[byte], bytes int) error {
	return q.push(item{dst: dst, src: src, bytes: bytes})
}

func (q *lazy) Store(at gpu.Ptr[uint64], v uint64) error {
	return q.push(item{bytes: -1, at: at, value: v})
}

func (q *lazy) StoreBoth(first gpu.Ptr[uint64], value uint64, second gpu.Ptr[uint64], then uint64) error {
	if err := q.Store(first, value); err != nil {
		return err
	}
	return q.Store(second, then)
}

// some does a few items, of a changing number.
func (q *lazy) some(all bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turn++
	for n := q.turn % 4; q.head != q.tail && (all || n > 0); n-- {
		if i := &q.items[q.head%len(q.items)]; i.bytes < 0 {
			gpu.Store(i.at, i.value, gpu.Release, gpu.ScopeSys)
		} else {
			copy(gpu.Slice(i.dst, i.bytes), gpu.Slice(i.src, i.bytes))
		}
		q.head++
	}
}

func (q *lazy) Pinned(bytes int) ([]byte, func() error, error) {
	words := make([]uint64, (bytes+7)/8)
	return gpu.Slice(gpu.Cast[byte](gpu.PtrTo(&words[0])), bytes), func() error { return nil }, nil
}

func (q *lazy) Close() error {
	q.some(true)
	return nil
}

// onDouble is the plugin with a double of the device's queue. If far, windows are in what is taken for device memory: the
// plugin is given addresses only.
type onDouble struct {
	Plugin
	far bool
}

func (p onDouble) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	q := new(lazy)
	c.Copier = func() (netplugin.Copier, error) { return q, nil }
	e, err := p.Plugin.Open(c)
	if err != nil {
		return nil, err
	}
	return &polled{endpoint: e.(*endpoint), q: q, far: p.far}, nil
}

// polled is an endpoint whose rank's queue gets on when it is polled.
type polled struct {
	*endpoint
	q   *lazy
	far bool
	one [1]netplugin.Op
}

func (e *polled) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	if e.far && len(k.Bytes) == 0 && len(k.Map) == k.Size && k.Size > 0 {
		k.Dev, k.Map = gpu.PtrOf(k.Map), nil
	}
	return e.endpoint.Import(peer, k)
}

func (e *polled) Post(ops []netplugin.Op) int {
	if !e.far {
		return e.endpoint.Post(ops)
	}
	for i := range ops {
		// A copy: who waits for the operation may look at it meanwhile.
		op := &e.one[0]
		*op = ops[i]
		// Values stay host bytes without an address; a copy engine has to be given pinned ones.
		if data := op.Data; op.Kind == netplugin.Get || len(data) > inlineBytes/2 {
			if op.Src = gpu.PtrOf(data); len(data)%3 != 0 {
				op.Data, op.Bytes = nil, len(data)
			}
		}
		n := e.endpoint.Post(e.one[:])
		if n == 1 {
			ops[i].State, ops[i].Err = op.State, op.Err
		}
		if n == 0 || op.State == netplugin.Failed {
			return i + n
		}
	}
	return len(ops)
}

func (e *polled) Poll(done []netplugin.Completion) int {
	for _, t := range e.peers {
		if t != nil {
			t.cp.(*lazy).some(false)
		}
	}
	return e.endpoint.Poll(done)
}

func (e *polled) Withdraw(export []byte) {
	// A device gets on by itself.
	ended := make(chan struct{})
	go func() {
		e.endpoint.Withdraw(export)
		close(ended)
	}()
	for {
		select {
		case <-ended:
			return
		default:
			e.q.some(true)
			runtime.Gosched()
		}
	}
}

func TestConformance(t *testing.T) {
	for name, far := range map[string]bool{"host memory": false, "device memory": true} {
		t.Run(name, func(t *testing.T) {
			plugintest.Run(t, func(testing.TB) plugintest.Harness { return plugintest.Harness{Plugin: onDouble{far: far}} })
		})
	}
}

func says(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	_, err := Plugin{}.Open(netplugin.Config{Rank: 2, Ranks: 2})
	says(t, err, "rank 2 of 2", "0 to ranks-1")
	_, err = Plugin{}.Open(netplugin.Config{Rank: 0, Ranks: 1})
	says(t, err, "rank 0", "no copy engines")
	ep, err := onDouble{}.Open(netplugin.Config{Rank: 0, Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	c := ep.(netplugin.Connector)
	says(t, c.Connect(context.Background(), [][]byte{c.Address()}), "addresses of 1 ranks, 2 are accepted")
	says(t, c.Connect(context.Background(), [][]byte{c.Address(), []byte("elsewhere")}), "rank 1 is not of this process", "network tcp")
	_, err = ep.Import(1, netplugin.Key{Size: 8, Map: make([]byte, 8)})
	says(t, err, "rank 1", "not met")
	_, err = ep.Import(0, netplugin.Key{Size: 8})
	says(t, err, "0 of its 8 bytes are mapped")
	_, err = ep.Import(0, netplugin.Key{Size: 8, Map: make([]byte, 8), Bytes: []byte("none")})
	says(t, err, `no signals are exported as "none"`)
}

// TestDeviceFails has the device fail: what is queued ends with its error, and nothing waits.
func TestDeviceFails(t *testing.T) {
	ep, err := onDouble{far: true}.Open(netplugin.Config{Rank: 0, Ranks: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	c := ep.(netplugin.Connector)
	if err := c.Connect(context.Background(), [][]byte{c.Address()}); err != nil {
		t.Fatal(err)
	}
	mem := make([]byte, 4096)
	r, err := ep.Import(0, netplugin.Key{Map: mem, Size: len(mem)})
	if err != nil {
		t.Fatal(err)
	}
	op := []netplugin.Op{{Kind: netplugin.Put, Dst: r, Data: make([]byte, 1000), Token: 7}}
	if ep.Post(op) != 1 || op[0].State != netplugin.Posted {
		t.Fatalf("not posted: %+v", op[0])
	}
	gone := errors.New("the device is gone")
	ep.(*polled).q.broken = gone
	var done [4]netplugin.Completion
	if n := ep.Poll(done[:]); n != 1 || done[0].Token != 7 || !errors.Is(done[0].Err, gone) {
		t.Errorf("ended %d, %+v; want token 7 with %v", n, done[0], gone)
	}
	if ep.Post(op) != 1 || op[0].State != netplugin.Failed || !errors.Is(op[0].Err, gone) {
		t.Errorf("posted to a device that is gone: %+v", op[0])
	}
}
