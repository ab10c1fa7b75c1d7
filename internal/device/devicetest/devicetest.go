// SPDX-License-Identifier: Apache-2.0

// Package devicetest is the conformance suite of compute devices: what package device promises, held against one.
//
//	func TestConformance(t *testing.T) {
//		devicetest.Run(t, func(testing.TB) device.Device { return soft.New(soft.Options{}) })
//	}
//
// Run it under -race too where kernels run on the CPU: a barrier or a launch that orders nothing is seen there and may not
// be elsewhere.
package devicetest

import (
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/device"
)

// Bound ends what a correct device never waits for.
const Bound = 20 * time.Second

// Run holds the device that open gives against each rule, as subtests. open is called for each of them; the suite
// closes the device.
func Run(t *testing.T, open func(t testing.TB) device.Device) {
	for _, c := range []struct {
		name string
		on   func(*bed)
	}{
		{"shapes", checkShapes},
		{"refused", checkRefused},
		{"cooperative", checkCooperative},
		{"beside", checkBeside},
		{"barrier", checkBarrier},
		{"order", checkOrder},
		{"events", checkEvents},
		{"streams", checkStreams},
		{"memory", checkMemory},
		{"hostmemory", checkHostMemory},
		{"readwrite", checkReadWrite},
		{"copies", checkCopies},
		{"graphs", checkGraphs},
		{"import", checkImport},
		{"outofmemory", checkOutOfMemory},
		{"close", checkClose},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &bed{TB: t, dev: open(t)}
			t.Cleanup(b.end)
			c.on(b)
		})
	}
	t.Run("failure", func(t *testing.T) {
		d := open(t)
		confined := d.Powers().Confined
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if !confined {
			t.Skip("a failure ends more than a stream of this device: RunFailures is called for it")
		}
		RunFailures(t, open)
	})
}
