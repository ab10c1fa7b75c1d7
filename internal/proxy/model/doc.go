// SPDX-License-Identifier: Apache-2.0

// Package model is the protocol of the Proxy's queue, small enough that every interleaving can be visited: tickets,
// credit, slots with phase bits, hints, sweep, the two indices, the strong signal, sleep, and a producer that dies.
//
// [Check] takes one finite instance, a [Config], visits every reachable state breadth first, and reports the shortest
// run that breaks a rule, or a state from which the work can't end any more. README.md says what is in the model, what
// is not, and what it found. queue.pml is the same protocol for spin, written apart.
//
// The package has no users but its tests. A change of the protocol is made here first.
package model
