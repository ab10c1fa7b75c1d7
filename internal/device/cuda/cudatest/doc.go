// SPDX-License-Identifier: Apache-2.0

// Package cudatest is a test double of NVIDIA's driver: a library with the functions that package cuda calls, over memory of the
// host. A kernel's Go function runs for its PTX, on the software device; all else that the host does is what it does with a GPU.
//
// It holds what a GPU would not forgive: that the host never touches device memory (it faults, while no kernel and no copy is
// under way), that no call is made that waits for kernels while one runs, that nothing is left at the end. What it cannot hold:
// PTX, the GPU's memory model, a touch of device memory beside a kernel.
package cudatest
