// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race

package sys

// CopyPastCaches is copy here. The race detector does not see what other instructions touch.
func CopyPastCaches(dst, src []byte) { copy(dst, src) }
