// SPDX-License-Identifier: Apache-2.0

//go:build race

package tcp

import "sync/atomic"

// order is what the race detector is told of sockets: what was done before something was sent is seen by who received it. Of raw
// system calls it does not know.
var order atomic.Uint64

func sending()  { order.Add(1) }
func received() { order.Load() }
