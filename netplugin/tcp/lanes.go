// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"cmp"
	"fmt"
	"slices"
)

// A lane is one of the sockets to a peer that are used together, over interfaces of their own. Contexts are dealt out to
// the lanes of a peer in turn, and each stays on its own for ever, so that its operations keep their order.

// defaultLanes is how many there are to a peer at most, if the user says nothing.
const defaultLanes = 4

// path is what a socket goes through.
type path struct {
	local, remote string // interfaces
	mbits         int    // Mbit/s of the slower end, as far as ends are known; 0: neither
	mtu           int    // bytes, of the smaller end
	within        bool   // both ends are of this host
}

// join is the path between two interfaces.
func join(local string, localMbits, localMTU int, remote peerInterface, within bool) path {
	p := path{local: local, remote: remote.Name, mbits: min(localMbits, remote.Mbits), mtu: min(localMTU, remote.MTU), within: within}
	if localMbits == 0 || remote.Mbits == 0 { // the end that is known bounds the path
		p.mbits = max(localMbits, remote.Mbits)
	}
	return p
}

// chooseLanes chooses which of the paths to a peer, in its order of preference, are used together, at most so many. lanes
// are places in paths, the first of lane 0: the fastest, of equal ones that which takes the largest packets. Another is
// added only if it shares no interface with the lanes before it, is at least half as fast as lane 0, and takes packets as
// large: where it does not, it is likely to be a tunnel through the interface of that one, and says that one's speed or
// none. Speeds that are not known count as equal, and as less than any other. why says, for each path that is left out,
// what for.
func chooseLanes(paths []path, most int) (lanes []int, why []string) {
	why = make([]string, len(paths))
	order := make([]int, len(paths))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(paths[b].mbits, paths[a].mbits), cmp.Compare(paths[b].mtu, paths[a].mtu))
	})
	for _, i := range order {
		if len(lanes) == 0 {
			lanes = append(lanes, i)
			continue
		}
		if why[i] = unfit(paths, lanes, i); why[i] == "" && len(lanes) >= most {
			why[i] = fmt.Sprintf("at most %d lanes are asked for", most)
		}
		if why[i] == "" {
			lanes = append(lanes, i)
		}
	}
	return lanes, why
}

// unfit says why a path cannot be a lane beside others; empty if it can.
func unfit(paths []path, lanes []int, i int) string {
	p, best := paths[i], paths[lanes[0]]
	if p.within || best.within {
		return "within a host one lane is enough"
	}
	for n, l := range lanes {
		switch {
		case paths[l].local == p.local:
			return fmt.Sprintf("it leaves by %s, as lane %d", p.local, n)
		case paths[l].remote == p.remote:
			return fmt.Sprintf("it arrives at %s, as lane %d", p.remote, n)
		}
	}
	switch {
	case p.mbits == 0 && best.mbits != 0:
		return fmt.Sprintf("its speed is not known, that of lane 0 is %d Mbit/s", best.mbits)
	case 2*p.mbits < best.mbits:
		return fmt.Sprintf("%d Mbit/s, less than half of lane 0's %d", p.mbits, best.mbits)
	case p.mtu < best.mtu:
		return fmt.Sprintf("it may be a tunnel: it takes packets of %d bytes, lane 0 of %d", p.mtu, best.mtu)
	}
	return ""
}

func (p path) String() string {
	s := p.local + " to " + p.remote
	switch {
	case p.within:
		return s + " within the host"
	case p.mbits == 0:
		return s + " at an unknown speed"
	}
	return fmt.Sprintf("%s at %d Mbit/s", s, p.mbits)
}
