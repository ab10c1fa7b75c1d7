// SPDX-License-Identifier: Apache-2.0

package soft_test

import (
	"fmt"
	"testing"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
	"github.com/doorbell-net/doorbell/internal/device/soft"
)

func TestConformance(t *testing.T) {
	for _, o := range []soft.Options{
		{},
		{Allocator: soft.Shared, MaxWarps: 64},
		{Far: true},
		{Far: true, Allocator: soft.Shared},
		{Resident: 1, Seed: 7, CrowdedProcess: true, CrowdedMachine: true},
	} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			devicetest.Run(t, func(testing.TB) device.Device { return soft.New(o) })
		})
	}
}
