// SPDX-License-Identifier: Apache-2.0

package lockstep

import "fmt"

// Misaligned is an access that a GPU would trap on.
func Misaligned(addr, alignment uint64) error {
	return fmt.Errorf("access at address %#x, multiples of %d are accepted, at %v", addr, alignment, here())
}
