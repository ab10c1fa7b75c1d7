// SPDX-License-Identifier: Apache-2.0

package staged

import (
	"testing"

	"github.com/doorbell-net/doorbell/netplugin"
	_ "github.com/doorbell-net/doorbell/netplugin/fault"
	"github.com/doorbell-net/doorbell/netplugin/plugintest"
	"github.com/doorbell-net/doorbell/netplugin/tcp"
)

func wrap(t testing.TB, p netplugin.Plugin) netplugin.Plugin {
	t.Helper()
	s, err := Wrapper{}.Wrap(p, netplugin.Faults{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	for name, far := range map[string]bool{"host memory": false, "device memory": true} {
		t.Run(name, func(t *testing.T) {
			plugintest.Run(t, func(t testing.TB) plugintest.Harness {
				return plugintest.Harness{Plugin: &plugintest.OnDevice{Plugin: wrap(t, tcp.Plugin{}), Far: far}}
			})
		})
	}
}

// TestConformanceOverFaults: a network that does all that one may do changes nothing.
func TestConformanceOverFaults(t *testing.T) {
	plugintest.Run(t, func(t testing.TB) plugintest.Harness {
		p, err := netplugin.Lookup("staged+fault+tcp", netplugin.Faults{Text: "all"})
		if err != nil {
			t.Fatal(err)
		}
		return plugintest.Harness{Plugin: &plugintest.OnDevice{Plugin: p, Far: true}, Allocates: true}
	})
}
