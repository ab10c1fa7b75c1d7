// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sys

// Pause tells the processor that this is a loop that polls: it leaves more of a core's units to whoever shares it.
func Pause()
