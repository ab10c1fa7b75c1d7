// SPDX-License-Identifier: Apache-2.0

package netplugin_test

import (
	"fmt"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/netplugin"
)

// named is a plugin that has a name and no network.
type named string

func (n named) Name() string                                    { return string(n) }
func (named) Powers() netplugin.Powers                          { return netplugin.Powers{} }
func (named) Open(netplugin.Config) (netplugin.Endpoint, error) { return nil, nil }
func (n namedWrapper) Name() string                             { return string(n) }
func (n namedWrapper) Wrap(p netplugin.Plugin, f netplugin.Faults) (netplugin.Plugin, error) {
	if f.Text == "refuse" {
		return nil, fmt.Errorf("%s knows no refuse", string(n))
	}
	return named(fmt.Sprintf("%s(%s,%s%d)", string(n), p.Name(), f.Inject, f.Rank)), nil
}

// namedWrapper writes into the name what it wrapped.
type namedWrapper string

func init() {
	netplugin.Register(named("one"))
	netplugin.Register(named("two"))
	netplugin.RegisterWrapper(namedWrapper("in"))
	netplugin.RegisterWrapper(namedWrapper("out"))
}

// TestLookup: the last part of the name is the network; wrappers stand in front, the outermost first.
func TestLookup(t *testing.T) {
	f := netplugin.Faults{Inject: "x", Rank: 3}
	for _, c := range []struct{ name, want string }{
		{"one", "one"}, {"two", "two"}, {"in+one", "in(one,x3)"}, {"out+in+two", "out(in(two,x3),x3)"}, {"in+in+one", "in(in(one,x3),x3)"},
	} {
		p, err := netplugin.Lookup(c.name, f)
		if err != nil || p.Name() != c.want {
			t.Errorf("lookup %q: %v, error %v (want %s)", c.name, p, err, c.want)
		}
	}
}

// TestLookupRefuses: the error names what is not there, and what is.
func TestLookupRefuses(t *testing.T) {
	for _, c := range []struct{ name, missing, there string }{
		{"three", `"three"`, "one, two"}, {"", `""`, "one, two"}, {"One", `"One"`, "one, two"}, {"in+", `""`, "one, two"},
		{"one+two", `"one"`, "in, out"}, {"+one", `""`, "in, out"}, {"in+around+one", `"around"`, "in, out"}, {"in", `"in"`, "one, two"},
	} {
		p, err := netplugin.Lookup(c.name, netplugin.Faults{})
		if err == nil {
			t.Errorf("lookup %q gave %v", c.name, p.Name())
		} else if s := err.Error(); !strings.Contains(s, c.missing+" is not there") || !strings.Contains(s, c.there) {
			t.Errorf("lookup %q: %q (want %s is not there, and %s)", c.name, s, c.missing, c.there)
		}
	}
}

// TestWrapRefuses: what a wrapper refuses is an error that names the network.
func TestWrapRefuses(t *testing.T) {
	p, err := netplugin.Lookup("out+in+one", netplugin.Faults{Text: "refuse"})
	if p != nil || err == nil || err.Error() != `network "out+in+one": in knows no refuse` {
		t.Errorf("lookup: %v, error %v", p, err)
	}
}

// TestRegisterRefuses: a name that is taken, or that no lookup finds, is a mistake of the program.
func TestRegisterRefuses(t *testing.T) {
	for words, register := range map[string]func(){
		`two plugins are named "one"`:  func() { netplugin.Register(named("one")) },
		`two wrappers are named "in"`:  func() { netplugin.RegisterWrapper(namedWrapper("in")) },
		`a plugin is named ""`:         func() { netplugin.Register(named("")) },
		`a plugin is named "One"`:      func() { netplugin.Register(named("One")) },
		`a wrapper is named "in+side"`: func() { netplugin.RegisterWrapper(namedWrapper("in+side")) },
	} {
		func() {
			defer func() {
				if p := recover(); !strings.Contains(fmt.Sprint(p), words) {
					t.Errorf("panic %v, want %s", p, words)
				}
			}()
			register()
		}()
	}
	// The one that was there stays, and nothing is left locked.
	if p, err := netplugin.Lookup("one", netplugin.Faults{}); err != nil || p.Name() != "one" {
		t.Errorf("lookup after a refused registration: %v, error %v", p, err)
	}
}

// round keeps the names of one run of TestConcurrentUse apart from those of the next (-count).
var round atomic.Int32

func TestConcurrentUse(t *testing.T) {
	r := round.Add(1)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := fmt.Sprintf("concurrent%d.%d", r, i)
			netplugin.Register(named(name))
			for range 50 {
				if p, err := netplugin.Lookup("out+"+name, netplugin.Faults{}); err != nil || !strings.Contains(p.Name(), name) {
					t.Errorf("lookup: %v, error %v", p, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestInBounds holds the bounds check against numbers that do not overflow.
func TestInBounds(t *testing.T) {
	edge := rapid.SampledFrom([]uint64{0, 1, 7, 8, 9, 1 << 31, 1<<63 - 1, 1 << 63, 1<<64 - 8, 1<<64 - 1})
	number := rapid.OneOf(edge, rapid.Uint64(), rapid.Uint64Range(0, 20))
	rapid.Check(t, func(t *rapid.T) {
		off, n, size := number.Draw(t, "off"), number.Draw(t, "n"), number.Draw(t, "size")
		end := new(big.Int).Add(new(big.Int).SetUint64(off), new(big.Int).SetUint64(n))
		want := end.Cmp(new(big.Int).SetUint64(size)) <= 0
		if got := netplugin.InBounds(off, n, size); got != want {
			t.Fatalf("%d bytes at %d of %d: in bounds is %v", n, off, size, got)
		}
	})
}
