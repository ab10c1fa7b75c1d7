// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
	"github.com/doorbell-net/doorbell/netplugin"
	_ "github.com/doorbell-net/doorbell/netplugin/fault"
	"github.com/doorbell-net/doorbell/netplugin/plugintest"
	"github.com/doorbell-net/doorbell/netplugin/shm"
	_ "github.com/doorbell-net/doorbell/netplugin/tcp"
)

// TestConformance: a network that does what a network may do wrong passes the kit all the same, with each fault by itself
// and with all.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		net    string
		faults []string
	}{
		{"shm", []string{"", "reorder", "delay", "split", "again", "stall", "cut", "all", "all,unordered"}},
		{"tcp", []string{"reorder", "delay", "split", "again", "stall", "cut", "duplicate", "all,duplicate", "all,duplicate,unordered"}},
	} {
		for _, text := range c.faults {
			if testenv.Race && !strings.Contains(text, "all") {
				continue // they are in all, and here each takes ten times as long
			}
			t.Run(c.net+","+text, func(t *testing.T) {
				plugintest.Run(t, func(t testing.TB) plugintest.Harness {
					f := netplugin.Faults{Text: text}
					if text != "" {
						f.Text = fmt.Sprintf("seed=%d,%s", testenv.Seed, text)
					}
					t.Logf("DOORBELL_SEED=%d", testenv.Seed)
					return plugintest.Harness{Plugin: lookup(t, "fault+"+c.net, f), Seed: testenv.Seed, Histories: 5,
						Allocates: c.net == "tcp" && (strings.Contains(text, "cut") || strings.Contains(text, "all"))} // a socket that is made again
				})
			})
		}
	}
}

func lookup(t testing.TB, name string, f netplugin.Faults) netplugin.Plugin {
	t.Helper()
	p, err := netplugin.Lookup(name, f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestName(t *testing.T) {
	p := lookup(t, "fault+shm", netplugin.Faults{})
	if p.Name() != "fault+shm" || p.Powers() != (shm.Plugin{}).Powers() {
		t.Errorf("name %q, powers %+v: those of shm are kept", p.Name(), p.Powers())
	}
	if _, err := netplugin.Lookup("fault+shm", netplugin.Faults{Inject: "earthquake"}); err == nil {
		t.Error("a fault that does not exist was not refused")
	}
}

// outcome is what operations left behind.
type outcome struct {
	mem  []byte
	sigs [2]uint64
}

// play posts on a rank: a signal, a put without one, three puts with signals, each batch at a time or all at once.
func play(t *testing.T, p netplugin.Plugin, rank, batch int) outcome {
	t.Helper()
	e, err := p.Open(netplugin.Config{Rank: rank, Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	o := outcome{mem: make([]byte, 256)}
	sigs := make([]byte, 16)
	data, err1 := e.Import(1, netplugin.Key{Map: o.mem, Size: len(o.mem)})
	sig, err2 := e.Import(1, netplugin.Key{Map: sigs, Size: len(sigs)})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	ops := []netplugin.Op{
		{Kind: netplugin.Signal, Raise: true, SigDst: sig, SigAdd: 100},
		{Kind: netplugin.Put, Dst: data, DstOff: 0, Data: bytes.Repeat([]byte{1}, 20)},
		{Kind: netplugin.Put, Dst: data, DstOff: 300, Data: []byte{1}}, // refused: it spends no fault
		{Kind: netplugin.Put, Dst: data, DstOff: 32, Data: bytes.Repeat([]byte{2}, 32), Raise: true, SigDst: sig, SigOff: 8, SigAdd: 1},
		{Kind: netplugin.Put, Dst: data, DstOff: 64, Data: bytes.Repeat([]byte{3}, 32), Raise: true, SigDst: sig, SigOff: 8, SigAdd: 1},
		{Kind: netplugin.Put, Dst: data, DstOff: 96, Data: bytes.Repeat([]byte{4}, 32), Raise: true, SigDst: sig, SigOff: 8, SigAdd: 1},
	}
	sources := make([][]byte, len(ops))
	for i := range ops {
		sources[i] = bytes.Clone(ops[i].Data)
	}
	for at := 0; at < len(ops); {
		n := e.Post(ops[at:min(at+batch, len(ops))])
		if n < 1 {
			t.Fatalf("Post took %d of the operations from number %d on", n, at)
		}
		at += n
	}
	for i := range ops {
		if !bytes.Equal(sources[i], ops[i].Data) {
			t.Errorf("operation %d: the caller's Data was changed", i)
		}
		if failed := ops[i].State == netplugin.Failed; failed != (i == 2) {
			t.Errorf("operation %d: failed is %v (%v)", i, failed, ops[i].Err)
		}
	}
	o.sigs = [2]uint64{binary.NativeEndian.Uint64(sigs), binary.NativeEndian.Uint64(sigs[8:])}
	return o
}

// TestInject: each fault happens on its rank, once, on the first operation that fits, and changes nothing else.
func TestInject(t *testing.T) {
	right := play(t, shm.Plugin{}, 0, 6)
	if want := [2]uint64{100, 3}; right.sigs != want || right.mem[0] != 1 || right.mem[127] != 4 {
		t.Fatalf("shm: signals %v (want %v), memory %v", right.sigs, want, right.mem)
	}
	for _, batch := range []int{1, 2, 6} {
		for _, c := range []struct {
			inject string
			harm   func(got outcome) string // what is wrong with it
		}{
			{netplugin.InjectBitFlip, func(got outcome) string {
				flipped := 0
				for i := range got.mem[:20] {
					flipped += bits.OnesCount8(got.mem[i] ^ right.mem[i])
				}
				if flipped != 1 || !bytes.Equal(got.mem[20:], right.mem[20:]) || got.sigs != right.sigs {
					return fmt.Sprintf("%d bits of the first put are flipped (want 1, and no other byte changed)", flipped)
				}
				return ""
			}},
			{netplugin.InjectLostPut, func(got outcome) string {
				if !bytes.Equal(got.mem[:20], make([]byte, 20)) || !bytes.Equal(got.mem[20:], right.mem[20:]) || got.sigs != right.sigs {
					return "the first put's bytes must be missing, and nothing else"
				}
				return ""
			}},
			{netplugin.InjectDoubleSignal, func(got outcome) string {
				if got.sigs != [2]uint64{200, 3} || !bytes.Equal(got.mem, right.mem) {
					return "the first signal must be added twice, and nothing else be wrong"
				}
				return ""
			}},
		} {
			t.Run(fmt.Sprintf("%s,batch=%d", c.inject, batch), func(t *testing.T) {
				p := lookup(t, "fault+shm", netplugin.Faults{Inject: c.inject, Rank: 1})
				if got := play(t, p, 0, batch); !bytes.Equal(got.mem, right.mem) || got.sigs != right.sigs {
					t.Error("rank 0, on which nothing was asked for, misbehaves")
				}
				if got := play(t, p, 1, batch); c.harm(got) != "" {
					t.Errorf("%s\nmemory %v\nsignals %v", c.harm(got), got.mem, got.sigs)
				}
			})
		}
	}
}

// slow takes an operation at every second call only.
type slow struct{ shm.Plugin }

func (slow) Name() string { return "slow" }

func (s slow) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	e, err := s.Plugin.Open(c)
	return &slowEnd{Endpoint: e}, err
}

type slowEnd struct {
	netplugin.Endpoint
	calls int
}

func (e *slowEnd) Post(ops []netplugin.Op) int {
	if e.calls++; e.calls%2 == 0 {
		return 0
	}
	return e.Endpoint.Post(ops[:1])
}

func init() { netplugin.Register(slow{}) }

// seen is an endpoint that has to be connected, and keeps the last operation posted to it.
type seen struct {
	netplugin.Endpoint
	netplugin.Connector
	op netplugin.Op
}

func (e *seen) Post(ops []netplugin.Op) int {
	e.op = ops[len(ops)-1]
	return len(ops)
}

// seeing opens it.
type seeing struct {
	shm.Plugin
	e *seen
}

// under is the one that there is.
var under = &seen{}

func init() { netplugin.Register(seeing{e: under}) }

func (seeing) Name() string { return "seeing" }

func (p seeing) Open(netplugin.Config) (netplugin.Endpoint, error) { return p.e, nil }

// TestDeviceAddress: what is spoilt is not read from the device's address of the good bytes instead; and a network that has to
// be connected still has to be.
func TestDeviceAddress(t *testing.T) {
	good := bytes.Repeat([]byte{7}, 100)
	for _, inject := range []string{netplugin.InjectBitFlip, netplugin.InjectLostPut} {
		for _, host := range []bool{true, false} {
			e, err := lookup(t, "fault+seeing", netplugin.Faults{Inject: inject}).Open(netplugin.Config{Ranks: 1})
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := e.(netplugin.Connector); !ok {
				t.Errorf("%s: the endpoint does not have to be connected any more", inject)
			}
			op := []netplugin.Op{{Kind: netplugin.Put, Src: gpu.PtrOf(good), Bytes: len(good)}}
			if host {
				op[0].Data = good
			}
			if e.Post(op) != 1 {
				t.Fatalf("%s: not taken", inject)
			}
			spoilt := inject == netplugin.InjectLostPut && under.op.Len() == 0 ||
				inject == netplugin.InjectBitFlip && len(under.op.Data) == len(good) && !bytes.Equal(under.op.Data, good)
			if fits := host || inject == netplugin.InjectLostPut; spoilt != fits || spoilt && !under.op.Src.IsNil() {
				t.Errorf("%s, host bytes %v: passed on %d bytes, address %v", inject, host, under.op.Len(), !under.op.Src.IsNil())
			}
		}
	}
}

// TestAgain: the fault is not lost on a network that takes fewer operations than it is offered, and happens once.
func TestAgain(t *testing.T) {
	e, err := lookup(t, "fault+slow", netplugin.Faults{Inject: netplugin.InjectDoubleSignal}).Open(netplugin.Config{Rank: 0, Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	sigs := make([]byte, 8)
	sig, err := e.Import(1, netplugin.Key{Map: sigs, Size: len(sigs)})
	if err != nil {
		t.Fatal(err)
	}
	ops := make([]netplugin.Op, 10)
	for i := range ops {
		ops[i] = netplugin.Op{Kind: netplugin.Signal, Raise: true, SigDst: sig, SigAdd: 1}
	}
	rest := ops
	for calls := 0; calls < 100 && len(rest) > 0; calls++ {
		rest = rest[e.Post(rest):]
	}
	if got := binary.NativeEndian.Uint64(sigs); len(rest) != 0 || got != 11 {
		t.Errorf("%d operations were not taken, the signal is %d (want 10 and the one that is doubled)", len(rest), got)
	}
}
