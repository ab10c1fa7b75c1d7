// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"fmt"
	"testing"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
)

// TestConformance runs the suite over the test double of the driver: all but the kernels' code is what runs on a GPU.
func TestConformance(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			devicetest.Run(t, func(t testing.TB) device.Device { return newDouble(t).open(cuda.Options{Ranks: ranks}) })
		})
	}
}

func TestFailures(t *testing.T) {
	devicetest.RunFailures(t, func(t testing.TB) device.Device { return newDouble(t).open(cuda.Options{}) })
}
