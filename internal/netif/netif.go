// SPDX-License-Identifier: Apache-2.0

// Package netif lists the addresses at which other hosts may reach this one. Which of them a peer really reaches is
// found by trying (Try), not by guessing from names.
package netif

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Interface is an interface with what matters of it.
type Interface struct {
	Name     string
	Up       bool
	Loopback bool
	MTU      int          // bytes
	Mbits    int          // speed in Mbit/s; 0: not known, as of most virtual ones, and on other systems than Linux
	Addrs    []netip.Addr // in the system's order; link-local ones of IPv6 carry their zone
}

// List is this host's interfaces, in the system's order. It is a snapshot; an interface that goes meanwhile is left out.
func List() ([]Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []Interface
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it may have gone meanwhile
		}
		x := Interface{Name: i.Name, Up: i.Flags&net.FlagUp != 0, Loopback: i.Flags&net.FlagLoopback != 0, MTU: i.MTU}
		if x.Up && !x.Loopback {
			x.Mbits = speed(sysNet, i)
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			ip := p.Addr().Unmap()
			if ip.Is6() && ip.IsLinkLocalUnicast() {
				ip = ip.WithZone(i.Name)
			}
			x.Addrs = append(x.Addrs, ip)
		}
		out = append(out, x)
	}
	return out, nil
}

// Addresses is the addresses of interfaces that are up, those that other hosts may reach first and loopback last.
// Link-local addresses are left out: the same one may stand on each link of a peer.
func Addresses(all []Interface) (out []netip.Addr) {
	for _, loop := range []bool{false, true} {
		for _, x := range all {
			if x.Up && x.Loopback == loop {
				out = append(out, x.usable()...)
			}
		}
	}
	return out
}

// Choose is Select and then Addresses. Where no address is left the error says why, interface by interface.
func Choose(all []Interface, filter string) ([]netip.Addr, error) {
	kept, err := Select(all, filter)
	if err != nil {
		return nil, err
	}
	out := Addresses(kept)
	if len(out) > 0 {
		return out, nil
	}
	if len(kept) == 0 {
		return nil, errors.New("choose interfaces: this host has none")
	}
	var why []string
	for _, x := range kept {
		why = append(why, x.Name+" "+x.Lacks())
	}
	of := "" // all of them
	if filter != "" {
		of = fmt.Sprintf(" %q", filter)
	}
	return nil, fmt.Errorf("choose interfaces%s: no address that a peer could reach: %s (accepted: an interface that is up, with an address of more than its link)",
		of, strings.Join(why, ", "))
}

// usable is the addresses that mean the same on every link.
func (x Interface) usable() (out []netip.Addr) {
	for _, a := range x.Addrs {
		if a.IsValid() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified() {
			out = append(out, a)
		}
	}
	return out
}

// Lacks says in words why an interface has no address for peers; empty if it has one.
func (x Interface) Lacks() string {
	switch {
	case !x.Up:
		return "is down"
	case len(x.Addrs) == 0:
		return "has no address"
	case len(x.usable()) == 0:
		return "has link-local addresses only"
	}
	return ""
}
