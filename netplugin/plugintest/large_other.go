// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package plugintest

import "testing"

// checkLargeOffsets needs address space without memory behind it.
func checkLargeOffsets(t testing.TB, h Harness) {
	t.Log("regions above 4 GiB are tried on Linux alone")
}
