// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"testing"

	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// TestOverNIC: what holds over the proxy holds where kernels drive a NIC, an emulated one.
func TestOverNIC(t *testing.T) {
	t.Setenv(env.Backend.Name(), "gdaki")
	if !testenv.Race { // gin's own tests race over one, and these take long
		t.Run("LL", TestLLShapes)
		t.Run("HT", TestHTShapes)
		t.Run("replays", TestReplays)
	}
	t.Run("HT graph", func(t *testing.T) { htGraph(t, 9, 2) })
	t.Run("recover", TestRecover)
	t.Run("HT recover", TestHTRecover)
	t.Run("peer leaves", TestPeerLeaves)
	t.Run("HT peer leaves", TestHTPeerLeaves)
}
