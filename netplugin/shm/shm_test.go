// SPDX-License-Identifier: Apache-2.0

package shm_test

import (
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/plugintest"
	"github.com/doorbell-net/doorbell/netplugin/shm"
)

var seed = flag.Uint64("seed", 0, "seed of the conformance kit, 0: a new one")

func TestConformance(t *testing.T) {
	plugintest.Run(t, func(testing.TB) plugintest.Harness { return plugintest.Harness{Plugin: shm.Plugin{}, Seed: *seed} })
}

// TestRegistered: the package's import is all that --net shm needs.
func TestRegistered(t *testing.T) {
	p, err := netplugin.Lookup("shm", netplugin.Faults{})
	if err != nil {
		t.Fatal(err)
	}
	w := p.Powers()
	if !w.Ordered || !w.RemoteCompletion || !w.Mapped || w.MaxBytes != shm.MaxBytes || w.Network {
		t.Errorf("powers of shm are %+v: a memory copy is ordered, complete when posted, mapped, and no network", w)
	}
}

func open(t *testing.T, rank, ranks int) netplugin.Endpoint {
	t.Helper()
	e, err := shm.Plugin{}.Open(netplugin.Config{Rank: rank, Ranks: ranks})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func use(t *testing.T, e netplugin.Endpoint, mem []byte) netplugin.Region {
	t.Helper()
	r, err := e.Import(1, netplugin.Key{Map: mem, Size: len(mem)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestDoneInPost: nothing is left to Poll, which lets Core skip it.
func TestDoneInPost(t *testing.T) {
	e := open(t, 0, 2)
	mem := make([]byte, 64)
	ops := []netplugin.Op{{Kind: netplugin.Put, Peer: 1, Dst: use(t, e, mem), Data: []byte("abc"), State: netplugin.Failed}}
	if n := e.Post(ops); n != 1 || ops[0].State != netplugin.Done || string(mem[:3]) != "abc" {
		t.Errorf("Post took %d, state %d, memory %q", n, ops[0].State, mem[:3])
	}
	if n := e.Poll(make([]netplugin.Completion, 4)); n != 0 {
		t.Errorf("Poll reported %d completions", n)
	}
}

// TestUnalignedRegion: a window may start anywhere; a signal in it that is no aligned word of memory is refused.
func TestUnalignedRegion(t *testing.T) {
	e := open(t, 0, 2)
	mem := make([]byte, 4096)
	for skew := range 8 {
		r := use(t, e, mem[skew:])
		op := []netplugin.Op{{Kind: netplugin.Signal, Raise: true, Peer: 1, SigDst: r, SigOff: 8, SigAdd: 1}}
		e.Post(op)
		if want := skew != 0; want != (op[0].State == netplugin.Failed) {
			t.Errorf("signal in a region that starts at %d modulo 8: %v", skew, op[0].Err)
		}
		op[0] = netplugin.Op{Kind: netplugin.Put, Peer: 1, Dst: r, Data: []byte{9}}
		if e.Post(op); op[0].State != netplugin.Done || mem[skew] != 9 {
			t.Errorf("put to a region that starts at %d modulo 8: %v", skew, op[0].Err)
		}
	}
}

// TestErrors: they say who, what, where, and what is there.
func TestErrors(t *testing.T) {
	e := open(t, 2, 4)
	r := use(t, e, make([]byte, 64))
	for _, c := range []struct {
		op     netplugin.Op
		bounds bool
		has    string
	}{
		{netplugin.Op{Kind: netplugin.Put, Peer: 3, Dst: r, DstOff: 60, Data: make([]byte, 5)}, true,
			"shm on rank 2: 5 bytes at offset 60 of a window of rank 3, which has 64 bytes: out of bounds"},
		{netplugin.Op{Kind: netplugin.Signal, Raise: true, Peer: 1, SigDst: r, SigOff: 64}, true,
			"shm on rank 2: 8 bytes at offset 64 of signals of rank 1, which has 64 bytes: out of bounds"},
		{netplugin.Op{Kind: netplugin.Signal, Raise: true, Peer: 1, SigDst: r, SigOff: 12}, false, "signal at offset 12"},
		{netplugin.Op{Kind: 9, Peer: 1, Dst: r}, false, "operation of kind 9 to rank 1"},
	} {
		ops := []netplugin.Op{c.op}
		e.Post(ops)
		err := ops[0].Err
		if err == nil || !strings.Contains(err.Error(), c.has) || errors.Is(err, netplugin.ErrBounds) != c.bounds {
			t.Errorf("error %v (want %q, bounds %v)", err, c.has, c.bounds)
		}
	}
	e.Close()
	if _, err := e.Import(1, netplugin.Key{Map: make([]byte, 8), Size: 8}); err == nil {
		t.Error("import on a closed endpoint was not refused")
	}
}

func BenchmarkPost(b *testing.B) {
	for _, size := range []int{8, 4096} {
		b.Run(map[int]string{8: "8B", 4096: "4KiB"}[size], func(b *testing.B) {
			e, err := shm.Plugin{}.Open(netplugin.Config{Rank: 0, Ranks: 2})
			if err != nil {
				b.Fatal(err)
			}
			mem, sigs := make([]byte, 8192), make([]byte, 64)
			data, err1 := e.Import(1, netplugin.Key{Map: mem, Size: len(mem)})
			sig, err2 := e.Import(1, netplugin.Key{Map: sigs, Size: len(sigs)})
			if err := errors.Join(err1, err2); err != nil {
				b.Fatal(err)
			}
			ops := make([]netplugin.Op, 32)
			for i := range ops {
				ops[i] = netplugin.Op{Kind: netplugin.Put, Raise: true, Peer: 1, Dst: data, Data: make([]byte, size), SigDst: sig, SigAdd: 1}
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for n := 0; n < b.N; n += len(ops) {
				e.Post(ops)
			}
		})
	}
}
