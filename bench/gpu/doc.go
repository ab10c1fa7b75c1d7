// SPDX-License-Identifier: Apache-2.0

// Package gpu, in its test files, holds bench/kernels on a GPU against the same kernels on the CPU, and keeps the
// C++ twins' arguments equal to Go's. run.sh measures.
//
// Twins of package moe's kernels (ll.cu, ht.cu) are tried on the CPU too, in the place of ours: a block's threads there are contexts of
// one thread of the host, 32 to a warp (lanes_cpu.h), and what comes is compared to the byte. So is the twin of what posts to a NIC
// (gdaki.cu): WQE by WQE. What a put executes of either is counted on a GPU (tools/measure -wqes).
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
// that polls for requests. A batch costs the CPU 1.4 us, and its second store the GPU 0.7. One copy of 16 bytes, payload and
// signal side by side, takes 5.0 us, but nobody promises in which order they come. The driver refuses stores without a barrier, and the CPU
// cannot map device memory: the DMA buffer of it has no mmap (ENOTSUPP). So a round trip between device windows by ce, 17.7 us, is
// two batches and two posts. Signals in device memory would save 2 of it, and then no CPU could raise one: between pinned windows, where
// it does, that is the difference between 5.9 us and what two stream writes take.
//
// No call was found that has a copy engine copy within the device: plain, by two and three dimensions, to a peer that is the device
// itself, to another mapping of the same memory, in a batch with CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE, as a node of a graph, 4 MiB
// take 3.5 to 7.6 us (8 at odd addresses; through 1 MiB of pinned memory 200). Plain ones are a kernel: in a green context their rate is
// that of its multiprocessors, 92, 174, 320 and 533 GB/s of 2, 4, 8 and 16. Beside a kernel of 1,024 threads and all shared memory on each
// multiprocessor most of them found room, and 4 MiB at odd addresses waited for its end, with the flag as without. So ce and dma do
// not use them; who has two ranks on one GPU moves much by stores. Through pinned memory 4 MiB take 340, 203 and 180 us in pieces of 256
// KiB, 1 and 2 MiB, one after another on one stream, 131 and 134 with a stream each for out and in that wait for each other, and 113 and 99
// where the next copy begins before the last has ended; by stores and waits of the streams in place of events 3 to 10 % more. Rows of 14
// KiB take 10.7 us each, 5.2 if eight go out before they go in, and 1.8 by cuMemcpyBatchAsync of eight.
//
// A checked put of 8 bytes to an LSA peer and its signal take 2.6 us there and back where bare kernels take 2.2. Both wait once for
// memory before they store, ours for the window's generation, base and size and the word, which are loaded together; both then wait
// for the release. The rest, by their machine code, is instructions: those of the checks, and of a wait that has a deadline.
//
// # Seen on two H200s, driver 580
//
// A copy engine moves 396 GB/s to the other GPU, and stores of multiprocessors 366 from 64 blocks and 370 from 132, whatever their
// shape (of 133 that were tried none did more than 0.94 of the engine). Both GPUs at once store 357 each, and load 327 each: so rows
// that a dispatch stores come to 0.90 of the engine's rate at best, and a combine that reads outputs to 0.83. Ours come to 0.92 of
// either limit: a dispatch with a known layout moves 330 GB/s, a combine 300.
//
// Copies of 4 MiB from GPU to GPU, queued one by one, take 13.2 us each; with a store behind each that tells the host, 16.5, behind
// each second 14.9, each fourth 14.0; batches of eight with a store behind them 11.5.
package gpu
