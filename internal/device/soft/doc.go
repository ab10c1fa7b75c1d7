// SPDX-License-Identifier: Apache-2.0

// Package soft is the software device: it runs kernels as goroutines, a warp each.
//
// Its memory comes from one of two allocators, never mixed within a rank. Between processes it is shared memory that
// is passed by descriptor. Within one process it is slabs of the Go heap, since the race detector is blind to other
// memory, and to atomics there.
package soft
