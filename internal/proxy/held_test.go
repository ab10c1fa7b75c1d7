// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// TestHeld is what TestOwner tries at random: over a network without order a strong signal waits for all before it, a weak
// one for the other pieces of its put alone. A network that is taken for ordered shows that the look at it is one.
func TestHeld(t *testing.T) {
	s := shape{contexts: 1, peers: 2, depth: 16, signals: 1, windows: 1, maxBytes: 100, bytes: 1000}
	for _, c := range []struct {
		name      string
		size      uint64
		flags     uint8
		ordered   bool
		taken     int // of the put before and this one, while nothing ends
		violation bool
	}{
		{"strong", 8, abi.FlagSignalInc | abi.FlagStrong, false, 1, false},
		{"weak", 8, abi.FlagSignalInc, false, 2, false},
		{"none", 8, 0, false, 2, false},
		{"weak, in pieces", 250, abi.FlagSignalInc, false, 1, false},
		{"no signal, in pieces", 250, 0, false, 2, false},
		{"strong, taken for ordered", 8, abi.FlagSignalInc | abi.FlagStrong, true, 2, true},
		{"weak, in pieces, taken for ordered", 250, abi.FlagSignalInc, true, 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeRig(t, s, testenv.Random(t), 0)
			f.net.late, f.net.unordered, f.dc.Unordered = 1, true, !c.ordered
			f.produce(0, 0, f.desc(abi.OpPut, 0, 50, 0, 0), nil, true)
			d := f.desc(abi.OpPut, 0, c.size, 100, 0)
			d.Flags = c.flags
			f.produce(0, 0, d, nil, true)
			f.produce(0, 1, f.signal(), nil, true) // another peer's is not held
			for range 50 {
				f.owner.Pass()
			}
			if got := f.taken(0, 0); got != c.taken {
				t.Errorf("%d were taken while nothing has ended, want %d", got, c.taken)
			}
			if got := f.taken(0, 1); got != 1 {
				t.Error("a signal to another peer is held")
			}
			f.until(t, "all is through", func() bool {
				f.net.land(1)
				return f.through()
			})
			err := f.check()
			if got := err != nil && strings.Contains(err.Error(), "while what it covers"); got != c.violation {
				t.Errorf("a signal before what it covers: %v, want %v (%v)", got, c.violation, err)
			}
		})
	}
}

// TestAddressRefused gives descriptors that name a signal at an address which is not there.
func TestAddressRefused(t *testing.T) {
	s := shape{contexts: 1, peers: 1, depth: 4, signals: 1, windows: 1, maxBytes: 100, bytes: 1000}
	for name, change := range map[string]func(d *abi.Desc){
		"a window of bytes":                func(d *abi.Desc) { d.SigID, d.SigGen = 0, 5 },
		"no window":                        func(d *abi.Desc) { d.SigID = 77 },
		"another generation":               func(d *abi.Desc) { d.SigGen++ },
		"no multiple of 8":                 func(d *abi.Desc) { d.SigOff = 12 },
		"no signal":                        func(d *abi.Desc) { d.Flags = abi.FlagAtAddress },
		"a get":                            func(d *abi.Desc) { d.Op = abi.OpGet },
		"a put into a window of signals":   func(d *abi.Desc) { d.DstWin, d.DstGen = 1, 6 },
		"a put out of a window of signals": func(d *abi.Desc) { d.SrcWin = 1 },
		"strong, without strong signals":   func(d *abi.Desc) { d.Flags |= abi.FlagStrong },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeRig(t, s, testenv.Random(t), 0)
			f.dc.ABI.Refused = abi.FlagStrong
			d := f.desc(abi.OpPut, 0, 8, 0, 0)
			d.Flags = abi.FlagSignalInc
			f.at(&d, 8)
			f.produce(0, 0, d, nil, true)
			f.until(t, "the good one is through", f.through)
			if f.status(0, 0) != abi.OK {
				t.Fatalf("the good one was refused: %v", f.failed)
			}
			change(&d)
			f.put(0, 0, d, nil, true)
			f.until(t, "it is refused", func() bool { return f.status(0, 0) == abi.RemoteError })
			if len(f.net.log[lane{f.dc.Context, 0}]) != 1 {
				t.Error("the network saw it")
			}
		})
	}
}
