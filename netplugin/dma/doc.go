// SPDX-License-Identifier: Apache-2.0

// Package dma is the network between the processes of one host whose windows may lie in device memory that they share: a
// rank's copy engines write into its mapping of the peer's window, and when they have, the CPU raises the signal. Between
// windows that both processes' CPUs reach the CPU copies. It is no network: its figures say so.
//
// Between the memory of two GPUs it is one copy. Within one GPU, where a copy may be a kernel that waits for those that run, it is
// two, through pinned memory of the host; small ones of one call of Post go together (Gather), of long ones pieces come out while
// others go in.
//
// Queue is its order, and that of who else moves bytes between device and host: moves take effect one after another.
package dma
