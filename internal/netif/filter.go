// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// accepted is what a filter may be, for errors.
const accepted = "accepted: names or beginnings of names, =NAME, networks as 10.1.0.0/16, each with ^ before it to exclude, commas between"

// rule is one part of a filter.
type rule struct {
	text    string // as written
	exclude bool
	whole   bool         // name must be the whole name
	name    string       // empty: a network
	network netip.Prefix // masked
}

// Select keeps the interfaces that a filter names, and those alone, in their order: names or beginnings of names, or
// networks as 10.1.0.0/16, with commas between; "=eth1" is the whole name, and "^" before any of these excludes. A filter
// that only excludes keeps the rest; an empty one keeps all. Of an interface that is named by network alone, only its
// addresses of these networks are kept; excluding a network drops addresses, and the interface with its last.
//
// The error names the part that is malformed, or that fits no interface; excluding what is not there is no error.
func Select(all []Interface, filter string) ([]Interface, error) {
	rules, err := parse(filter)
	if err != nil {
		return nil, err
	}
	if len(rules) == 0 {
		return all, nil
	}
	var want, not []rule
	for _, r := range rules {
		switch {
		case r.exclude:
			not = append(not, r)
		case !slices.ContainsFunc(all, r.touches):
			return nil, fmt.Errorf("select interfaces %q: %q fits none of %s", filter, r.text, names(all))
		default:
			want = append(want, r)
		}
	}
	var out []Interface
	for _, x := range all {
		if slices.ContainsFunc(not, func(r rule) bool { return r.names(x) }) {
			continue
		}
		named := len(want) == 0 || slices.ContainsFunc(want, func(r rule) bool { return r.names(x) })
		var keep []netip.Addr
		for _, a := range x.Addrs {
			has := func(r rule) bool { return r.has(a) }
			if (named || slices.ContainsFunc(want, has)) && !slices.ContainsFunc(not, has) {
				keep = append(keep, a)
			}
		}
		if len(keep) > 0 || named && len(x.Addrs) == 0 {
			x.Addrs = keep
			out = append(out, x)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("select interfaces %q: none of %s is left", filter, names(all))
	}
	return out, nil
}

// CheckFilter refuses a filter that is malformed, whatever interfaces there are.
func CheckFilter(filter string) error {
	_, err := parse(filter)
	return err
}

// parse reads a filter, without looking at interfaces.
func parse(filter string) ([]rule, error) {
	if strings.TrimSpace(filter) == "" {
		return nil, nil
	}
	var rules []rule
	for part := range strings.SplitSeq(filter, ",") {
		r := rule{text: strings.TrimSpace(part)}
		var err error
		r.name, r.exclude = strings.CutPrefix(r.text, "^")
		r.name, r.whole = strings.CutPrefix(r.name, "=")
		switch {
		case r.name == "":
			err = errors.New("no name")
		case !r.whole && strings.Contains(r.name, "/"):
			r.network, err = network(r.name)
			r.name = ""
		case strings.ContainsAny(r.name, "^/ \t"):
			err = errors.New("no name of an interface")
		}
		if err != nil {
			return nil, fmt.Errorf("select interfaces %q: %q: %w (%s)", filter, r.text, err, accepted)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func network(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, errors.New("no network")
	}
	if p.Addr().Is4In6() {
		return p, errors.New("an IPv4 network in the dress of IPv6")
	}
	return p.Masked(), nil
}

// names says whether the rule is for the interface as a whole.
func (r rule) names(x Interface) bool {
	switch {
	case r.name == "":
		return false
	case r.whole:
		return x.Name == r.name
	}
	return strings.HasPrefix(x.Name, r.name)
}

func (r rule) has(a netip.Addr) bool { return r.name == "" && r.network.Contains(a.WithZone("")) }

func (r rule) touches(x Interface) bool { return r.names(x) || slices.ContainsFunc(x.Addrs, r.has) }

func names(all []Interface) string {
	if len(all) == 0 {
		return "no interfaces"
	}
	var n []string
	for _, x := range all {
		n = append(n, x.Name)
	}
	return strings.Join(n, ", ")
}
