// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/netplugin"
)

// doubling is the tcp network with each frame sent twice.
type doubling struct{ Plugin }

func (d doubling) Open(cfg netplugin.Config) (netplugin.Endpoint, error) {
	ep, err := d.Plugin.Open(cfg)
	if err == nil {
		ep.(netplugin.Duplicator).Duplicate(func() bool { return true })
	}
	return ep, err
}

// Frames that come twice have one effect, large and small ones, also while sockets break.
func TestDuplicatesFlap(t *testing.T) { flaps(t, doubling{}) }

// The second frame really goes: the target gets its bytes and gives them no effect.
func TestDuplicate(t *testing.T) {
	p := newPairOf(t, doubling{}, MaxBytes, time.Second)
	for _, n := range []int{0, 8, copyBelow + 1, MaxBytes} {
		data := make([]byte, n)
		for i := range data {
			data[i] = 1
		}
		before, ended := p.signal(0, 0), 0
		p.ep[1].Post([]netplugin.Op{p.put(1, 0, data, 0, 1)})
		p.drive(func() bool { return ended == 1 }, func(int, netplugin.Completion) {
			if ended++; ended == 1 {
				clear(p.win[0][:n]) // what comes now is the second one
			}
		})
		after := p.put(1, 0, nil, 1, 1)
		after.Token = 9
		p.ep[1].Post([]netplugin.Op{after})
		p.drive(func() bool { return ended == 2 }, func(int, netplugin.Completion) { ended++ })
		if got := p.signal(0, 0) - before; got != 1 {
			t.Errorf("a put of %d bytes that came twice raised its signal %d times", n, got)
		}
		for i, b := range p.win[0][:n] {
			if b != 0 {
				t.Fatalf("a put of %d bytes wrote byte %d again when it came twice", n, i)
			}
		}
	}
}

// A link that is cut comes back, and nothing is lost.
func TestCut(t *testing.T) {
	p := newPair(t, 4096, 10*time.Second)
	ended := 0
	for i := range 20 {
		if i%4 == 1 {
			p.ep[i%2].Cut(1 - i%2)
		}
		if n := p.ep[1].Post([]netplugin.Op{p.put(1, i, []byte{byte(1 + i)}, 0, 1)}); n != 1 {
			t.Fatal(n)
		}
		p.drive(func() bool { return ended == i+1 }, func(_ int, c netplugin.Completion) {
			if ended++; c.Err != nil {
				t.Fatal(c.Err)
			}
		})
	}
	breaks := p.ep[0].links[1][0].breaks + p.ep[1].links[0][0].breaks
	if p.signal(0, 0) != 20 || breaks < 5 {
		t.Errorf("signal is %d (want 20), %d breaks were seen (want 5 or more)", p.signal(0, 0), breaks)
	}
	p.ep[0].Cut(-1)
	p.ep[0].Cut(2)
}
