// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race

package sys

// Copy is copy for areas that do not overlap.
func Copy(dst, src []byte) int { return copy(dst, src) }
