// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/doorbell-net/doorbell/internal/netif"
)

// Bounds of what a rank says of itself.
const (
	maxAddressBytes = 32 << 10
	maxInterfaces   = 32
	maxAddrs        = 8 // of an interface
	maxNameBytes    = 64
	maxMbits        = 1 << 24 // Mbit/s
	maxMTU          = 1 << 20 // bytes
	maxLanes        = 16      // to one peer
)

// peerAddrs is what a rank says of itself: a line of JSON.
type peerAddrs struct {
	Lanes      int             // it takes part in at most so many to one peer
	Interfaces []peerInterface // most preferred first
}

// peerInterface is an interface of a rank that peers may reach.
type peerInterface struct {
	Name  string
	Mbits int              // Mbit/s; 0: not known
	MTU   int              // bytes; 0: not known
	Addrs []netip.AddrPort // most preferred first
}

// ours is what this rank says: a port on each address of its interfaces that a peer might reach, of all or of those that
// the user named. More than the bounds accept are left out, the least preferred ones first.
func ours(all []netif.Interface, named []netip.Addr, port uint16, lanes int) (a peerAddrs) {
	if named == nil {
		named = netif.Addresses(all)
	}
	a.Lanes = lanes
	for _, ip := range named {
		x := interfaceOf(all, ip)
		i := slices.IndexFunc(a.Interfaces, func(p peerInterface) bool { return p.Name == x.Name })
		if i < 0 {
			if len(a.Interfaces) == maxInterfaces {
				continue
			}
			i = len(a.Interfaces)
			a.Interfaces = append(a.Interfaces, peerInterface{Name: x.Name, Mbits: min(x.Mbits, maxMbits), MTU: min(x.MTU, maxMTU)})
		}
		if p := &a.Interfaces[i]; len(p.Addrs) < maxAddrs {
			p.Addrs = append(p.Addrs, netip.AddrPortFrom(ip, port))
		}
	}
	return a
}

// interfaceOf is the interface that has an address. One that is of none stands for an interface of its own, of which
// nothing is known.
func interfaceOf(all []netif.Interface, ip netip.Addr) netif.Interface {
	ip = ip.Unmap().WithZone("")
	for _, x := range all {
		if len(x.Name) <= maxNameBytes && slices.ContainsFunc(x.Addrs, func(a netip.Addr) bool { return a.WithZone("") == ip }) {
			return x
		}
	}
	return netif.Interface{Name: ip.String()}
}

func (a peerAddrs) encode() []byte {
	text, _ := json.Marshal(a) // of these types it cannot fail
	return text
}

// parseAddrs reads what a rank said of itself. The error says what of it is not accepted.
func parseAddrs(text []byte) (a peerAddrs, err error) {
	if len(text) > maxAddressBytes {
		return a, fmt.Errorf("%d bytes, at most %d are accepted", len(text), maxAddressBytes)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, err
	}
	switch {
	case a.Lanes < 1 || a.Lanes > maxLanes:
		return a, fmt.Errorf("%d lanes, 1 to %d are accepted", a.Lanes, maxLanes)
	case len(a.Interfaces) > maxInterfaces:
		return a, fmt.Errorf("%d interfaces, at most %d are accepted", len(a.Interfaces), maxInterfaces)
	}
	seen := map[string]bool{}
	for _, p := range a.Interfaces {
		switch {
		case p.Name == "" || len(p.Name) > maxNameBytes || seen[p.Name]:
			return a, fmt.Errorf("interface %.70q: a name of 1 to %d bytes is accepted, once", p.Name, maxNameBytes)
		case p.Mbits < 0 || p.Mbits > maxMbits || p.MTU < 0 || p.MTU > maxMTU:
			return a, fmt.Errorf("interface %q: %d Mbit/s, MTU %d; 0 to %d and 0 to %d are accepted", p.Name, p.Mbits, p.MTU, maxMbits, maxMTU)
		case len(p.Addrs) > maxAddrs:
			return a, fmt.Errorf("interface %q: %d addresses, at most %d are accepted", p.Name, len(p.Addrs), maxAddrs)
		}
		seen[p.Name] = true
		for _, at := range p.Addrs {
			if ip := at.Addr(); !at.IsValid() || at.Port() == 0 || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() {
				return a, fmt.Errorf("interface %q: address %q; one of a host, with a port, is accepted", p.Name, at)
			}
		}
	}
	return a, nil
}

// groups is the addresses by interface, loopback ones or all but those: what is tried side by side. of is the
// interface of each.
func (a *peerAddrs) groups(loopback bool) (groups [][]netip.AddrPort, of []peerInterface) {
	for _, p := range a.Interfaces {
		var g []netip.AddrPort
		for _, at := range p.Addrs {
			if at.Addr().IsLoopback() == loopback {
				g = append(g, at)
			}
		}
		if len(g) > 0 {
			groups, of = append(groups, g), append(of, p)
		}
	}
	return groups, of
}

// waysBack is an address by itself, then the others by interface, loopback ones last.
func (a *peerAddrs) waysBack(own netip.AddrPort) (groups [][]netip.AddrPort) {
	groups = append(groups, []netip.AddrPort{own})
	for _, loopback := range []bool{false, true} {
		more, _ := a.groups(loopback)
		for _, g := range more {
			if g = slices.DeleteFunc(g, func(at netip.AddrPort) bool { return at == own }); len(g) > 0 {
				groups = append(groups, g)
			}
		}
	}
	return groups
}

// onlyLoopback reports whether no other host can reach the rank.
func (a *peerAddrs) onlyLoopback() bool {
	groups, _ := a.groups(false)
	return len(groups) == 0
}

func (a *peerAddrs) String() string {
	var s []string
	for _, p := range a.Interfaces {
		for _, at := range p.Addrs {
			s = append(s, at.String())
		}
	}
	return strings.Join(s, ", ")
}
