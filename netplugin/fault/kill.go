// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"

	"github.com/doorbell-net/doorbell/netplugin"
)

// kill is a peer that is lost from some operation on.
type kill struct {
	peer int
	left int // operations to it until then
}

const maxLife = 64 // operations

func newKill(p plan, rank int) kill { return kill{p.kill, p.chance(kills, rank).below(maxLife)} }

// look counts an operation that was taken. The error is that of the peer's loss, which comes once.
func (k *kill) look(peer int32) error {
	if int(peer) != k.peer {
		return nil
	}
	if k.left--; k.left != -1 {
		return nil
	}
	return fmt.Errorf("fault: rank %d was killed: %w", peer, netplugin.ErrPeerLost)
}
