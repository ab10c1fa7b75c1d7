// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// fake makes an interface: "name[!] address ...", with ! for one that is down.
func fake(s string) Interface {
	f := strings.Fields(s)
	name, down := strings.CutSuffix(f[0], "!")
	x := Interface{Name: name, Up: !down, Loopback: name == "lo", MTU: 1500}
	for _, a := range f[1:] {
		x.Addrs = append(x.Addrs, netip.MustParseAddr(a))
	}
	return x
}

func fakes(list ...string) (all []Interface) {
	for _, s := range list {
		all = append(all, fake(s))
	}
	return all
}

// server is a host as they are: two networks, one of them with IPv6, bridges of containers, a port without a cable.
var server = fakes(
	"lo 127.0.0.1 ::1",
	"eth0 10.1.0.5 fe80::5%eth0",
	"eth1 192.168.7.5 2001:db8::5 fe80::6%eth1",
	"eth10 10.2.0.5",
	"docker0 172.17.0.1",
	"br-9f 172.18.0.1 fe80::1%br-9f",
	"ib0! 10.9.0.5",
	"usb0 169.254.3.1 fe80::7%usb0",
	"tap0",
)

func show(all []Interface) string {
	var s []string
	for _, x := range all {
		s = append(s, x.Name+fmt.Sprint(x.Addrs))
	}
	return strings.Join(s, " ")
}

func TestSelect(t *testing.T) {
	for filter, want := range map[string]string{
		"":                                     show(server),
		"  ":                                   show(server),
		"eth0":                                 "eth0[10.1.0.5 fe80::5%eth0]",
		"eth1":                                 "eth1[192.168.7.5 2001:db8::5 fe80::6%eth1] eth10[10.2.0.5]",
		"=eth1":                                "eth1[192.168.7.5 2001:db8::5 fe80::6%eth1]",
		"eth10, =eth0":                         "eth0[10.1.0.5 fe80::5%eth0] eth10[10.2.0.5]",
		"10.0.0.0/8":                           "eth0[10.1.0.5] eth10[10.2.0.5] ib0[10.9.0.5]",
		"10.1.77.77/16":                        "eth0[10.1.0.5]",
		"2001:db8::/32":                        "eth1[2001:db8::5]",
		"2001:db8::/32,=eth0":                  "eth0[10.1.0.5 fe80::5%eth0] eth1[2001:db8::5]",
		"fe80::/10":                            "eth0[fe80::5%eth0] eth1[fe80::6%eth1] br-9f[fe80::1%br-9f] usb0[fe80::7%usb0]",
		"eth,^=eth1":                           "eth0[10.1.0.5 fe80::5%eth0] eth10[10.2.0.5]",
		"eth,^10.2.0.0/16":                     "eth0[10.1.0.5 fe80::5%eth0] eth1[192.168.7.5 2001:db8::5 fe80::6%eth1]",
		"eth1,^2001:db8::/32,^fe80::/10":       "eth1[192.168.7.5] eth10[10.2.0.5]",
		"^docker,^br-,^lo,^usb,^ib,^tap,^veth": "eth0[10.1.0.5 fe80::5%eth0] eth1[192.168.7.5 2001:db8::5 fe80::6%eth1] eth10[10.2.0.5]",
		"tap0":                                 "tap0[]",
		"ib0":                                  "ib0[10.9.0.5]",
	} {
		got, err := Select(server, filter)
		if err != nil || show(got) != want {
			t.Errorf("%q:\n got %s, %v\nwant %s", filter, show(got), err, want)
		}
	}
}

func TestSelectRefuses(t *testing.T) {
	for filter, want := range map[string]string{
		"eth7":                `"eth7" fits none of lo, eth0,`,
		"=eth":                `"=eth" fits none of`,
		"eth0,wlan":           `"wlan" fits none of`,
		"10.77.0.0/16":        `"10.77.0.0/16" fits none of`,
		"10.1.0.0/33":         `"10.1.0.0/33": no network (accepted: `,
		"^10.1.0/16":          `"^10.1.0/16": no network`,
		"eth0,":               `"": no name (accepted: `,
		",":                   `"": no name`,
		"^":                   `"^": no name`,
		"^=":                  `"^=": no name`,
		"^^eth0":              `"^^eth0": no name of an interface`,
		"eth0 eth1":           `"eth0 eth1": no name of an interface`,
		"=eth0/24":            `"=eth0/24": no name of an interface`,
		"::ffff:10.1.0.0/104": `in the dress of IPv6`,
		"eth0,^eth":           "none of lo, eth0, eth1, eth10, docker0, br-9f, ib0, usb0, tap0 is left",
		"10.1.0.0/16,^eth0":   "is left",
	} {
		got, err := Select(server, filter)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("%q", filter)) {
			t.Errorf("%q: got %s, %v (want an error with %q)", filter, show(got), err, want)
		}
	}
	if _, err := Select(nil, "eth0"); err == nil || !strings.Contains(err.Error(), "fits none of no interfaces") {
		t.Errorf("a host without interfaces: %v", err)
	}
}

// TestSelectLeavesItsInput: the list is the caller's.
func TestSelectLeavesItsInput(t *testing.T) {
	before := show(server)
	if _, err := Select(server, "10.0.0.0/8,^10.1.0.0/16"); err != nil || show(server) != before {
		t.Errorf("%v; the list was changed to %s", err, show(server))
	}
}

func TestAddresses(t *testing.T) {
	want := "[10.1.0.5 192.168.7.5 2001:db8::5 10.2.0.5 172.17.0.1 172.18.0.1 127.0.0.1 ::1]"
	if got := fmt.Sprint(Addresses(server)); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	for _, odd := range []string{"eth0 224.0.0.5 0.0.0.0 ::", "eth0! 10.0.0.1", "eth0 fe80::1%eth0 169.254.0.9", "eth0"} {
		if got := Addresses(fakes(odd)); len(got) > 0 {
			t.Errorf("%s: %v", odd, got)
		}
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		host   []string
		filter string
		want   string // addresses, or what the error says
		ok     bool
	}{
		{[]string{"lo 127.0.0.1", "eth0 10.0.0.1"}, "", "[10.0.0.1 127.0.0.1]", true},
		{[]string{"lo ::1", "eth0 2001:db8::1 fe80::1%eth0"}, "eth0", "[2001:db8::1]", true}, // IPv6 only
		{[]string{"lo 127.0.0.1", "docker0 172.17.0.1", "eth0 10.0.0.1"}, "^docker,^lo", "[10.0.0.1]", true},
		{[]string{"lo 127.0.0.1", "eth0! 10.0.0.1"}, "eth0", "eth0 is down", false},
		{[]string{"lo 127.0.0.1", "eth0 fe80::1%eth0", "usb0 169.254.1.1", "tap0"}, "^lo", "eth0 has link-local addresses only, usb0 has link-local addresses only, tap0 has no address", false},
		{[]string{"lo 127.0.0.1", "eth0 10.0.0.1"}, "eth5", `"eth5" fits none of lo, eth0`, false},
		{nil, "", "this host has none", false},
	} {
		got, err := Choose(fakes(c.host...), c.filter)
		said := fmt.Sprint(got)
		if err != nil {
			said = err.Error()
		}
		if (err == nil) != c.ok || !strings.Contains(said, c.want) {
			t.Errorf("%q of %q: %s (want %s)", c.filter, c.host, said, c.want)
		}
	}
}

// dumbKeep says whether an address of an interface stays, one part after the other, straight from the words of Select.
func dumbKeep(name string, a netip.Addr, parts []string) bool {
	in, anyIn := false, false
	for _, p := range parts {
		q := strings.TrimPrefix(p, "^")
		fits := false
		if strings.Contains(q, "/") {
			fits = netip.MustParsePrefix(q).Contains(a)
		} else if strings.HasPrefix(q, "=") {
			fits = q[1:] == name
		} else {
			fits = len(name) >= len(q) && name[:len(q)] == q
		}
		if p != q && fits {
			return false
		}
		if p == q {
			anyIn = true
			in = in || fits
		}
	}
	return in || !anyIn
}

func TestSelectAgainstWords(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "ab", "=a", "=ab", "b", "10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8", "^a", "^=a", "^b", "^10.1.0.0/16", "^11.0.0.0/8", "^zz"})
	name := rapid.SampledFrom([]string{"a", "ab", "abc", "b", "c"})
	addr := rapid.SampledFrom([]string{"10.1.0.1", "10.2.0.1", "11.0.0.1", "12.0.0.1"})
	rapid.Check(t, func(t *rapid.T) {
		var all []Interface
		for _, n := range rapid.SliceOfNDistinct(name, 1, 4, rapid.ID).Draw(t, "names") {
			all = append(all, fake(n+" "+strings.Join(rapid.SliceOfNDistinct(addr, 1, 3, rapid.ID).Draw(t, "addrs"), " ")))
		}
		parts := rapid.SliceOfN(part, 1, 4).Draw(t, "parts")
		var want []string
		for _, x := range all {
			for _, a := range x.Addrs {
				if dumbKeep(x.Name, a, parts) {
					want = append(want, x.Name+" "+a.String())
				}
			}
		}
		got, err := Select(all, strings.Join(parts, ","))
		var have []string
		for _, x := range got {
			for _, a := range x.Addrs {
				have = append(have, x.Name+" "+a.String())
			}
		}
		if err != nil { // a part that fits nothing, or nothing left
			lone := slices.ContainsFunc(parts, func(p string) bool {
				return p[0] != '^' && !slices.ContainsFunc(all, func(x Interface) bool {
					return slices.ContainsFunc(x.Addrs, func(a netip.Addr) bool { return dumbKeep(x.Name, a, []string{p}) })
				})
			})
			if !lone && len(want) > 0 {
				t.Fatalf("%q of %s: %v (want %q)", parts, show(all), err, want)
			}
		} else if !slices.Equal(have, want) {
			t.Fatalf("%q of %s: %q (want %q)", parts, show(all), have, want)
		}
	})
}

func FuzzSelect(f *testing.F) {
	for _, s := range []string{"eth0", "^docker,=eth1", "10.0.0.0/8", "2001:db8::/32,^fe80::/10", ",", "^", "=", "0.0.0.0/0", "::/0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := Select(server, s)
		if err == nil && len(got) == 0 {
			t.Errorf("%q: nothing, and no error", s)
		}
		for _, x := range got {
			if !slices.ContainsFunc(server, func(y Interface) bool { return y.Name == x.Name && len(y.Addrs) >= len(x.Addrs) }) {
				t.Errorf("%q: made up %s", s, show([]Interface{x}))
			}
		}
	})
}

// TestList: this host, whatever it is, has consistent interfaces, and each usable address is found again.
func TestList(t *testing.T) {
	all, err := List()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		if x.Name == "" || x.Loopback && x.Up && len(x.Addrs) == 0 {
			t.Errorf("odd interface %+v", x)
		}
		for _, a := range x.Addrs {
			if a.Is6() && a.IsLinkLocalUnicast() != (a.Zone() != "") || a.Is4In6() {
				t.Errorf("%s has %v", x.Name, a)
			}
		}
		if got, err := Select(all, "="+x.Name); err != nil || len(got) != 1 {
			t.Errorf("=%s: %v, %v", x.Name, got, err)
		}
	}
}
