// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// TestFencePutSignalsStrongly reads the descriptors that a rank's barrier posts, to itself here: strong with FencePut, which
// no ordered network can tell from the other.
func TestFencePutSignalsStrongly(t *testing.T) {
	for _, strong := range []bool{false, true} {
		var (
			slots   [abi.DescWords]uint64
			hint    uint32
			status  uint32
			asleep  uint32
			control abi.Control
			prod    = abi.Producer{Credit: 1}
		)
		dc := DevComm{
			Version: abi.DevCommVersion, Ranks: 1, LSASize: 1, Contexts: 1, Signals: 5, Barriers: 1, Peers: 1, Slots: gpu.PtrTo(&slots[0]), Hints: gpu.PtrTo(&hint),
			Prod: gpu.PtrTo(&prod), Status: gpu.PtrTo(&status), Control: gpu.PtrTo(&control), Asleep: gpu.PtrTo(&asleep),
		}
		c := Open(&dc, 0)
		if s := c.announce(gpu.Thread{}, World(&dc), 0, dc.Signals, strong); s != OK {
			t.Fatal(s)
		}
		var d abi.Desc
		d.Decode(&slots)
		if got := d.Flags&abi.FlagStrong != 0; got != strong || d.Op != abi.OpSignal || d.Flags&abi.FlagSignalInc == 0 || d.SigID != 5 {
			t.Errorf("posted %+v, want a signal that is strong: %v", d, strong)
		}
	}
}
