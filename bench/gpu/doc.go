// SPDX-License-Identifier: Apache-2.0

// Package gpu, in its test files, holds bench/kernels on a GPU against the same kernels on the CPU, and keeps the
// C++ twins' arguments equal to Go's. run.sh measures.
//
// Twins of package moe's kernels (ll.cu, ht.cu) are tried on the CPU too, in the place of ours: a block's threads there are contexts of
// one thread of the host, 32 to a warp (lanes_cpu.h), and what comes is compared to the byte. So is the twin of what posts to a NIC
// (gdaki.cu): WQE by WQE. ptxas 13.0 makes of it 424 instructions for sm_90, of ours, which has what gin does of a put and of a value
// each whole, waits for room among it, 2,768 (nvdisasm 13.5). What a put executes is counted on a GPU, and was not yet.
//
// # Seen on one H200, driver 580
//
// A process's round trips by stores are 2.3 to 2.7 us or 3.2 to 4.1 us, whichever compiler made the kernel. The difference is
// the system-scope release: twins that release at GPU scope took 2.25 to 2.29 us in processes of either kind. What makes it
// slow in a process is not known. So ours and twin are compared in turn in one process.
//
// A put of 8 bytes into device memory, from the CPU's call until the CPU sees the answer of a kernel that waits for the signal
// and reads the payload, with the signal in the host's memory and in the device's: 7.4 and 5.3 us by one batch of two stream
// writes, 8.7 and 6.5 by two calls, 10.1 and 8.4 by the launch of a kernel that stores both, 5.1 and 2.8 by a resident kernel
// that polls for requests.
package gpu
