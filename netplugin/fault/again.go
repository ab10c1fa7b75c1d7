// SPDX-License-Identifier: Apache-2.0

package fault

// again is a network that has room for fewer operations than it is offered.
type again struct{ chance }

// takes is how many of n operations are taken.
func (a again) takes(n int) int {
	if n > 0 && a.hit() {
		return a.below(n)
	}
	return n
}
