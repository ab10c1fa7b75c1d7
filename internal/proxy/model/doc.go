// SPDX-License-Identifier: Apache-2.0

// Package model is the protocols of the Proxy, small enough that every interleaving can be visited. A [Config] is the
// queue: tickets, credit, slots with phase bits, hints, sweep, the two indices, the strong signal, sleep, and a producer
// that dies. A [Hold] is signals over a network without order, a [Reset] a signal's words under a reset, a [Windows] signal
// windows that come and go.
//
// [Check] takes one finite instance, visits every reachable state breadth first, and reports the shortest run that breaks a
// rule, or a state from which the work can't end any more. README.md says what is in the models, what is not, and what
// they found. queue.pml is the queue and the hold for spin, written apart.
//
// The package has no users but its tests. A change of the protocol is made here first.
package model
