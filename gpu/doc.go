// SPDX-License-Identifier: Apache-2.0

// Package gpu is the vocabulary that kernels are written in: threads, pointers, ordered loads and stores, fences,
// barriers, shuffles and copies, also those of the copy unit with the barriers in shared memory that they arrive at.
//
// Each function here has a body that runs on the CPU, where a warp is one goroutine ([WarpSize] is 1), and is an
// instruction to the compiler that turns the same source into PTX, where a warp has 32 lanes. Built with -tags lockstep a
// warp has 32 lanes on the CPU too, and is held to what a GPU asks of it.
//
// A kernel is a function with a [Thread] and one struct of arguments. Kernels use fixed-size values, arrays, structs,
// slices, methods and generics. They allocate nothing and use no interface, map, channel, string or defer.
//
// # Memory ordering
//
// The scopes and orders are those of the PTX memory model (PTX ISA, "Memory Consistency Model"): an operation is
// ordered against others only by Acquire, Release and fences, and only within its scope. The CPU is stricter on amd64
// (total store order), so that a kernel that is right there may still be wrong on a GPU; the race detector sees a
// missing release, since plain accesses are plain to it and ordered ones are atomics.
package gpu
