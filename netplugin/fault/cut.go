// SPDX-License-Identifier: Apache-2.0

package fault

import "github.com/doorbell-net/doorbell/netplugin"

// cut is a link that breaks for a time. A network that has sockets really loses them; else no operation goes to that peer,
// and the end of none comes back.
type cut struct {
	chance
	until map[int32]uint64 // step, by peer
	links netplugin.Cutter // nil where there is none
}

const maxCut = 100 // steps

func newCut(c chance, base netplugin.Endpoint) cut {
	links, _ := base.(netplugin.Cutter)
	return cut{c, map[int32]uint64{}, links}
}

// look may cut the link to a peer, with an operation to it.
func (c cut) look(step uint64, peer int32) {
	if !c.hit() {
		return
	}
	c.until[peer] = step + c.steps(maxCut)
	if c.links != nil {
		c.links.Cut(int(peer))
	}
}

// open says whether operations to a peer may go.
func (c cut) open(step uint64, peer int32) bool { return step >= c.until[peer] }
