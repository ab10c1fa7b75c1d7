// SPDX-License-Identifier: Apache-2.0

package fault

// delay is a network that takes its time, with operations and with saying that they ended.
type delay struct{ chance }

const maxDelay = 40 // steps

// time is for how many steps something waits; most often none.
func (d delay) time() uint64 {
	if d.hit() {
		return d.steps(maxDelay)
	}
	return 0
}
