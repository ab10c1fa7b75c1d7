// SPDX-License-Identifier: Apache-2.0

package ce

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/plugintest"
)

func TestConformance(t *testing.T) {
	for name, far := range map[string]bool{"host memory": false, "device memory": true} {
		t.Run(name, func(t *testing.T) {
			plugintest.Run(t, func(testing.TB) plugintest.Harness {
				return plugintest.Harness{Plugin: &plugintest.OnDevice{Plugin: Plugin{}, Far: far}}
			})
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
	ep, err := (&plugintest.OnDevice{Plugin: Plugin{}}).Open(netplugin.Config{Rank: 0, Ranks: 2})
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

// alone is the endpoint of a world of one rank, on a device whose memory the host does not see.
func alone(t *testing.T) (*plugintest.OnDevice, netplugin.Endpoint) {
	t.Helper()
	dev := &plugintest.OnDevice{Plugin: Plugin{}, Far: true}
	ep, err := dev.Open(netplugin.Config{Rank: 0, Ranks: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close() })
	c := ep.(netplugin.Connector)
	if err := c.Connect(t.Context(), [][]byte{c.Address()}); err != nil {
		t.Fatal(err)
	}
	return dev, ep
}

// TestDeviceFails has the device fail: what is queued ends with its error, and nothing waits.
func TestDeviceFails(t *testing.T) {
	dev, ep := alone(t)
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
	dev.Break(gone)
	var done [4]netplugin.Completion
	if n := ep.Poll(done[:]); n != 1 || done[0].Token != 7 || !errors.Is(done[0].Err, gone) {
		t.Errorf("ended %d, %+v; want token 7 with %v", n, done[0], gone)
	}
	if ep.Post(op) != 1 || op[0].State != netplugin.Failed || !errors.Is(op[0].Err, gone) {
		t.Errorf("posted to a device that is gone: %+v", op[0])
	}
}

// TestBatchFails: where the device fails at what was gathered, all of it ends with the device's error, those with a signal too.
func TestBatchFails(t *testing.T) {
	dev, ep := alone(t)
	mem, words := make([]byte, 4096), bytesOf(make([]uint64, 1))
	window, err := ep.Import(0, netplugin.Key{Map: mem, Size: len(mem)})
	key, err2 := ep.Export(words, true)
	signal, err3 := ep.Import(0, netplugin.Key{Bytes: key, Map: words, Size: 8})
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	var ops []netplugin.Op
	for token := range uint64(5) {
		ops = append(ops, netplugin.Op{Kind: netplugin.Put, Dst: window, DstOff: 500 * token, Data: make([]byte, 500), Token: token, Raise: token%2 == 0, SigDst: signal, SigAdd: 1})
	}
	gone := errors.New("the device is gone")
	dev.Break(gone)
	taken := ep.Post(ops)
	for _, op := range ops[:taken] {
		if op.State == netplugin.Failed && !errors.Is(op.Err, gone) {
			t.Errorf("failed: %v", op.Err)
		} else if op.State == netplugin.Done {
			t.Errorf("number %d is done", op.Token)
		}
	}
	failed := 0
	if ops[taken-1].State == netplugin.Failed {
		failed++
	}
	var done [8]netplugin.Completion
	n := ep.Poll(done[:])
	for _, d := range done[:n] {
		if !errors.Is(d.Err, gone) {
			t.Errorf("number %d ended with %v", d.Token, d.Err)
		}
	}
	if n+failed != taken || words[0] != 0 {
		t.Errorf("%d of %d ended, the signal is %d", n+failed, taken, words[0])
	}
}

// stuck is a device's queue that does nothing until it is told to.
type stuck struct{ stores []func() }

func (q *stuck) Copy(dst, src gpu.Ptr[byte], bytes int) error          { return nil }
func (q *stuck) Copies(dst, src []gpu.Ptr[byte], bytes []uint64) error { return nil }
func (q *stuck) Through(dst, src gpu.Ptr[byte], bytes int, via gpu.Ptr[byte], piece int, ahead bool) error {
	return nil
}
func (q *stuck) Reach(far gpu.Ptr[byte], bytes int) error { return nil }
func (q *stuck) Store(at gpu.Ptr[uint64], value uint64) error {
	q.stores = append(q.stores, func() { at.Store(value) })
	return nil
}
func (q *stuck) StoreBoth(first gpu.Ptr[uint64], value uint64, second gpu.Ptr[uint64], then uint64) error {
	return errors.Join(q.Store(first, value), q.Store(second, then))
}
func (q *stuck) Pinned(bytes int) ([]byte, func() error, error) {
	return bytesOf(make([]uint64, bytes/8)), func() error { return nil }, nil
}
func (q *stuck) Close() error { return nil }

func bytesOf(w []uint64) []byte { return gpu.Slice(gpu.Cast[byte](gpu.PtrTo(&w[0])), 8*len(w)) }

// TestWithdrawnBeforeItEnds: where a region is withdrawn whose signals did not come in time, nobody looks at its words any more:
// other memory may be there. What was on its way ends when the queue says so.
func TestWithdrawnBeforeItEnds(t *testing.T) {
	q := new(stuck)
	ep, err := Plugin{}.Open(netplugin.Config{Ranks: 1, Timeout: time.Millisecond, Copier: func() (netplugin.Copier, error) { return q, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	c := ep.(netplugin.Connector)
	if err := c.Connect(t.Context(), [][]byte{c.Address()}); err != nil {
		t.Fatal(err)
	}
	far, words := bytesOf(make([]uint64, 8)), [2][]uint64{make([]uint64, 4), make([]uint64, 4)}
	window, err := ep.Import(0, netplugin.Key{Dev: gpu.PtrOf(far), Size: 64})
	if err != nil {
		t.Fatal(err)
	}
	var ops []netplugin.Op
	var key []byte // of the first
	for i, w := range words {
		mem := bytesOf(w)
		k, err := ep.Export(mem, true)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ep.Import(0, netplugin.Key{Bytes: k, Map: mem, Size: 32})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			key = k
		}
		put := netplugin.Op{Kind: netplugin.Put, Dst: window, Src: gpu.PtrOf(far), Bytes: 8, Raise: true, SigDst: r, SigAdd: 1}
		for token := range uint64(2) {
			put.Token = 2*uint64(i) + token
			ops = append(ops, put)
		}
	}
	ops = []netplugin.Op{ops[2], ops[0], ops[3], ops[1]} // a mark that stays lies between two that do not
	if n := ep.Post(ops); n != len(ops) {
		t.Fatalf("posted %d: %v", n, ops[n-1].Err)
	}
	ep.Withdraw(key)
	for i := range words[0] {
		words[0][i] = 100
	}
	var done [8]netplugin.Completion
	if n := ep.Poll(done[:]); n != 0 {
		t.Errorf("%d operations ended by words of other memory: %v", n, done[:n])
	}
	for _, store := range q.stores {
		store()
	}
	if n := ep.Poll(done[:]); n != len(ops) || done[0].Err != nil {
		t.Errorf("%d operations ended with the queue, want %d: %v", n, len(ops), done[:n])
	}
}

// TestTargetCloses: what is on its way to a rank that closes ends, and nobody looks at the memory that this rank has given back.
func TestTargetCloses(t *testing.T) {
	dev := &plugintest.OnDevice{Plugin: Plugin{}, Far: true}
	var eps [2]netplugin.Endpoint
	var addrs [][]byte
	for r := range eps {
		ep, err := dev.Open(netplugin.Config{Rank: r, Ranks: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer ep.Close()
		eps[r], addrs = ep, append(addrs, ep.(netplugin.Connector).Address())
	}
	for _, ep := range eps {
		if err := ep.(netplugin.Connector).Connect(t.Context(), addrs); err != nil {
			t.Fatal(err)
		}
	}
	mem := make([]byte, 4096)
	r, err := eps[0].Import(1, netplugin.Key{Map: mem, Size: len(mem)})
	if err != nil {
		t.Fatal(err)
	}
	op := []netplugin.Op{{Kind: netplugin.Put, Peer: 1, Dst: r, Data: []byte("on its way"), Token: 7}}
	if eps[0].Post(op) != 1 || op[0].State != netplugin.Posted {
		t.Fatalf("not posted: %+v", op[0])
	}
	var done [4]netplugin.Completion
	if err := eps[1].Close(); err != nil {
		t.Fatal(err)
	}
	if n := eps[0].Poll(done[:]); n != 1 || done[0].Token != 7 || done[0].Err != nil || string(mem[:10]) != "on its way" {
		t.Errorf("ended %d, %+v, %q; want token 7, copied", n, done[0], mem[:10])
	}
}
