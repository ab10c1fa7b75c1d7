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

// Run holds the device that open gives against each rule, as subtests. They share a device, since to open one takes a GPU a second:
// each gives back what it took, and the last closes it, which fails when anything was left. Who fails closes it too: the next begins
// with another.
func Run(t *testing.T, open func(t testing.TB) device.Device) {
	var shared device.Device
	dev := func() device.Device {
		if shared == nil {
			shared = open(t)
		}
		return shared
	}
	check := func(name string, on func(*bed)) {
		t.Run(name, func(t *testing.T) {
			b := &bed{TB: t, dev: dev()}
			t.Cleanup(func() {
				if b.giveBack(); t.Failed() {
					b.close()
				}
				if b.closed {
					shared = nil
				}
			})
			on(b)
		})
	}
	check("shapes", checkShapes)
	check("refused", checkRefused)
	check("cooperative", checkCooperative)
	check("beside", checkBeside)
	check("barrier", checkBarrier)
	check("order", checkOrder)
	check("events", checkEvents)
	check("streams", checkStreams)
	check("memory", checkMemory)
	check("hostmemory", checkHostMemory)
	check("readwrite", checkReadWrite)
	check("copies", checkCopies)
	check("graphs", checkGraphs)
	check("import", checkImport)
	check("outofmemory", checkOutOfMemory)
	t.Run("failure", func(t *testing.T) {
		if !dev().Powers().Confined {
			t.Skip("a failure ends more than a stream of this device: RunFailures is called for it")
		}
		RunFailures(t, open)
	})
	check("close", checkClose)
	if shared != nil { // the last was not asked for
		if err := shared.Close(); err != nil {
			t.Error(err)
		}
	}
}
