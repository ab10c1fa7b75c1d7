// SPDX-License-Identifier: Apache-2.0

package fault

// stall is a way to a peer that stands for a time, while others go on.
type stall struct {
	chance
	until map[int32]uint64 // step, by peer
}

const maxStall = 100 // steps

// look may begin a stall with an operation to a peer.
func (s stall) look(step uint64, peer int32) {
	if s.hit() {
		s.until[peer] = step + s.steps(maxStall)
	}
}

// open says whether operations to a peer may go.
func (s stall) open(step uint64, peer int32) bool { return step >= s.until[peer] }
