// SPDX-License-Identifier: Apache-2.0

// The race detector does not see device memory of the double, which is mapped, and reports what is handed over there.
//go:build linux && (amd64 || arm64) && !race && !lockstep

package gintest

import (
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/internal/device/cuda/cudatest"
)

// TestOverDriver runs Ops and Team on the cuda device over the driver's double, by either backend.
func TestOverDriver(t *testing.T) {
	cudatest.InPlace(t, func(*cudatest.Driver) {
		for _, p := range onGPU {
			t.Run(p.String(), func(t *testing.T) { runOps(t, p, 2, 5000) })
		}
		for _, backend := range []string{"proxy", "gdaki"} {
			t.Run("team/"+backend, func(t *testing.T) { runTeam(t, 2, doorbell.Options{Device: "cuda", Backend: backend, Timeout: limit}) })
		}
	}, cudatest.Of(OpsKernel), cudatest.Of(TeamKernel))
}
