// SPDX-License-Identifier: Apache-2.0

package mailbox

import (
	"testing"

	"github.com/doorbell-net/doorbell/netplugin"
	_ "github.com/doorbell-net/doorbell/netplugin/fault"
	"github.com/doorbell-net/doorbell/netplugin/plugintest"
)

func TestConformance(t *testing.T) {
	plugintest.Run(t, func(testing.TB) plugintest.Harness { return plugintest.Harness{Plugin: Plugin{}} })
}

// TestFaults: the kit again, over the network made worse.
func TestFaults(t *testing.T) {
	plugintest.Run(t, func(t testing.TB) plugintest.Harness {
		p, err := netplugin.Lookup("fault+mailbox", netplugin.Faults{Text: "all,seed=7"})
		if err != nil {
			t.Fatal(err)
		}
		return plugintest.Harness{Plugin: p}
	})
}
