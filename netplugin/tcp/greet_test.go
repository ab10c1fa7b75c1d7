// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/internal/netif"
)

func TestGreetingGolden(t *testing.T) {
	b := greeting{code: greetLanes, lane: 2, lanes: 0x0e, heard: 0x1122334455667788}.encode()
	if got, want := hex.EncodeToString(b[:]), "0100"+"0200"+"0e00"+"0000"+"8877665544332211"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestGreetingRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := greeting{code: uint8(rapid.IntRange(0, greetMost).Draw(t, "code")), lanes: uint16(rapid.IntRange(1, maxLanes).Draw(t, "lanes")), heard: rapid.Uint64().Draw(t, "heard")}
		g.lane = uint16(rapid.IntRange(0, int(g.lanes)-1).Draw(t, "lane"))
		b := g.encode()
		if got, err := decodeGreeting(&b); err != nil || got != g {
			t.Fatalf("got %+v, %v; want %+v", got, err, g)
		}
	})
}

func TestGreetingRefuses(t *testing.T) {
	for want, g := range map[string]greeting{
		"code 3, 0 to 2":      {code: 3, lanes: 1},
		"17 lanes, 1 to 16":   {lanes: maxLanes + 1},
		"0 lanes, 1 to 16":    {},
		"lane 2 of 2":         {lane: 2, lanes: 2},
		"lane 16 of 0":        {code: greetLanes, lane: maxLanes},
		"65535 lanes, 1 to 1": {lanes: 65535},
	} {
		b := g.encode()
		if _, err := decodeGreeting(&b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", g, err, want)
		}
	}
}

func FuzzGreeting(f *testing.F) {
	for _, g := range []greeting{{lanes: 1}, {lane: 15, lanes: 16, heard: 1 << 63}, {code: greetGone}, {code: greetLanes, lanes: 3}} {
		b := g.encode()
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var b [greetBytes]byte
		copy(b[:], in)
		g, err := decodeGreeting(&b)
		if err != nil {
			return
		}
		if g.lanes > maxLanes || g.code == greetOK && g.lane >= g.lanes {
			t.Fatalf("accepted %+v", g)
		}
		if g.encode() != b {
			t.Fatalf("decoded %x, encoded %x", b, g.encode())
		}
	})
}

// host is interfaces as a server has them; what of them a rank tells is in TestOurs.
var host = []netif.Interface{
	{Name: "lo", Up: true, Loopback: true, MTU: 65536, Addrs: addrsOf("127.0.0.1", "::1", "10.255.0.7")},
	{Name: "eth0", Up: true, MTU: 1500, Mbits: 1000, Addrs: addrsOf("10.1.0.5", "fe80::5%eth0")},
	{Name: "ib0", Up: true, MTU: 9000, Mbits: 200_000, Addrs: addrsOf("10.2.0.5", "fd00::5")},
	{Name: "down0", MTU: 1500, Addrs: addrsOf("10.3.0.5")},
}

func addrsOf(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestOurs(t *testing.T) {
	const all = `{"Lanes":4,"Interfaces":[{"Name":"eth0","Mbits":1000,"MTU":1500,"Addrs":["10.1.0.5:7"]},` +
		`{"Name":"ib0","Mbits":200000,"MTU":9000,"Addrs":["10.2.0.5:7","[fd00::5]:7"]},` +
		`{"Name":"lo","Mbits":0,"MTU":65536,"Addrs":["127.0.0.1:7","[::1]:7","10.255.0.7:7"]}]}`
	if got := string(ours(host, nil, 7, 4).encode()); got != all {
		t.Errorf("got %s\nwant %s", got, all)
	}
	// The user's list is kept as it is: in its order, of two interfaces, with one that is of none.
	named := ours(host, addrsOf("fd00::5", "192.0.2.1", "10.2.0.5", "10.1.0.5"), 7, 1)
	if got, want := named.String(), "[fd00::5]:7, 10.2.0.5:7, 192.0.2.1:7, 10.1.0.5:7"; got != want || named.Interfaces[1].Name != "192.0.2.1" {
		t.Errorf("got %s %+v\nwant %s", got, named, want)
	}
	groups, of := named.groups(false)
	if got := fmt.Sprint(groups); got != "[[[fd00::5]:7 10.2.0.5:7] [192.0.2.1:7] [10.1.0.5:7]]" || of[2].Name != "eth0" {
		t.Errorf("groups %s", got)
	}
	whole, err := parseAddrs([]byte(all))
	if err != nil {
		t.Fatal(err)
	}
	if groups, of := whole.groups(true); fmt.Sprint(groups) != "[[127.0.0.1:7 [::1]:7]]" || of[0].Name != "lo" || whole.onlyLoopback() {
		t.Errorf("loopback groups %v", groups)
	}
	// Its own address, then those that are not loopback, each once.
	if got, want := fmt.Sprint(whole.waysBack(netip.MustParseAddrPort("10.2.0.5:7"))), "[[10.2.0.5:7] [10.1.0.5:7] [[fd00::5]:7] [10.255.0.7:7] [127.0.0.1:7 [::1]:7]]"; got != want {
		t.Errorf("ways back %s, want %s", got, want)
	}
	many := make([]netip.Addr, 3*maxInterfaces)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{10, 9, 0, byte(i)})
	}
	if got := ours(nil, many, 7, maxLanes); len(got.Interfaces) != maxInterfaces || got.Interfaces[0].Addrs[0].Addr() != many[0] {
		t.Errorf("%d interfaces of %d addresses", len(got.Interfaces), len(many))
	} else if _, err := parseAddrs(got.encode()); err != nil {
		t.Errorf("what a rank says is refused: %v", err)
	}
}

func TestParseAddrsRefuses(t *testing.T) {
	one := func(s string) string { return `{"Lanes":1,"Interfaces":[` + s + `]}` }
	for text, want := range map[string]string{
		``:                                   "unexpected end",
		`{}`:                                 "0 lanes, 1 to 16 are accepted",
		`{"Lanes":17}`:                       "17 lanes, 1 to 16 are accepted",
		`{"Lanes":-1}`:                       "-1 lanes",
		one(`{}`):                            `interface ""`,
		one(`{"Name":"a"},{"Name":"a"}`):     `interface "a": a name of 1 to 64 bytes is accepted, once`,
		one(`{"Name":"a","Mbits":-1}`):       "-1 Mbit/s",
		one(`{"Name":"a","MTU":1000000000}`): "MTU 1000000000",
		one(`{"Name":"a","Addrs":[""]}`):     "one of a host, with a port, is accepted",
		one(`{"Name":"a","Addrs":["a:1"]}`):  "unable to parse IP",
		one(`{"Name":"a","Addrs":["::1:"]}`): "no port",
		one(`{"Name":"a","Addrs":["10.0.0.1:0"]}`):                                             `address "10.0.0.1:0"`,
		one(`{"Name":"a","Addrs":["[fe80::1%eth0]:5"]}`):                                       "fe80::1%eth0",
		one(`{"Name":"a","Addrs":["0.0.0.0:5"]}`):                                              "0.0.0.0:5",
		one(`{"Name":"a","Addrs":["224.0.0.1:5"]}`):                                            "224.0.0.1:5",
		one(`{"Name":"a","Addrs":[` + strings.Repeat(`"1.1.1.1:5",`, 8) + `"1.1.1.1:5"]}`):     "9 addresses, at most 8",
		one(strings.Repeat(`{"Name":"a"},`, maxInterfaces) + `{"Name":"a"}`):                   "33 interfaces, at most 32",
		`{"Lanes":1,"Interfaces":[{"Name":"` + strings.Repeat("a", maxAddressBytes) + `"}]}`:   "at most 32768 are accepted",
		one(`{"Name":"` + strings.Repeat("a", maxNameBytes+1) + `","Addrs":["10.0.0.1:5"]}`):   "a name of 1 to 64 bytes",
		`[{"Lanes":1,"Interfaces":[{"Name":"a","Addrs":["10.0.0.1:5"]}]}]`:                     "cannot unmarshal array",
		`{"Lanes":1,"Interfaces":[{"Name":"a","Addrs":["10.0.0.1:5"]}]} {"Lanes":1,"more":""}`: "after top-level value",
	} {
		if a, err := parseAddrs([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %+v, %v; want %q", text, a, err, want)
		}
	}
}

// FuzzAddrs: what a peer says of itself is refused or within the bounds, and means the same when it is said again.
func FuzzAddrs(f *testing.F) {
	f.Add(ours(host, nil, 7, 4).encode())
	f.Add([]byte(`{"Lanes":1,"Interfaces":[{"Name":"a","Addrs":["[::ffff:10.0.0.1]:5","[fe80::1%a]:5"]}]}`))
	f.Add([]byte(`{"Lanes":16,"Interfaces":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := parseAddrs(text)
		if err != nil {
			return
		}
		n := 0
		for _, loopback := range []bool{false, true} {
			groups, of := a.groups(loopback)
			for i, g := range groups {
				n += len(g)
				for _, at := range g {
					if !at.IsValid() || at.Port() == 0 || at.Addr().IsLoopback() != loopback {
						t.Fatalf("address %s of %q, loopback %v", at, of[i].Name, loopback)
					}
				}
			}
		}
		if n > maxInterfaces*maxAddrs || len(a.Interfaces) > maxInterfaces || a.Lanes < 1 || a.Lanes > maxLanes {
			t.Fatalf("%d addresses of %d interfaces, %d lanes", n, len(a.Interfaces), a.Lanes)
		}
		again, err := parseAddrs(a.encode())
		if err != nil || again.String() != a.String() {
			t.Fatalf("%s, and again %s, %v", &a, &again, err)
		}
	})
}
