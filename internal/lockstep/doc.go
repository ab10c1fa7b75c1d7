// SPDX-License-Identifier: Apache-2.0

// Package lockstep holds the 32 lanes of a warp, a goroutine each, to what a GPU asks of a warp: that all lanes come to
// each operation of the warp, from one place in the kernel, before any goes on.
//
// Between two such operations lanes run at once and in any order, as those of a GPU may since Volta (CUDA C++ Programming
// Guide, "Independent Thread Scheduling"). Only Sync and Through order memory among them, a shuffle or a vote does not
// (PTX ISA, "bar.warp.sync" and "shfl.sync"); the race detector is told so, and finds a missing one.
package lockstep
