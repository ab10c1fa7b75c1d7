// SPDX-License-Identifier: Apache-2.0

package fault

// reorder is a network in which an operation may overtake others, where nothing orders them.
type reorder struct{ chance }

// maxPutOff bounds how often one operation is put off: each goes in the end.
const maxPutOff = 16

// putsOff says that others go before an item this time.
func (r reorder) putsOff(it *item) bool {
	if it.off < maxPutOff && r.hit() {
		it.off++
		return true
	}
	return false
}
