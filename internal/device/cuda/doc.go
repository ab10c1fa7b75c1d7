// SPDX-License-Identifier: Apache-2.0

// Package cuda is the NVIDIA device, by the driver's API: libcuda.so.1 is opened at run time, and nothing of a toolkit is
// needed. Kernels are PTX that the driver compiles when the device is opened.
//
// # One context for a GPU
//
// All ranks of a process on one GPU use its primary context, each by streams of its own. Kernels of two contexts take turns
// on a GPU and never run together, so that ranks that wait for each other would wait for ever; in one context they do, and
// memory of one is a plain pointer to the other. Each rank counts on its share of the multiprocessors: cooperative grids of
// all of them are resident together. Ranks of two processes on one GPU take turns: what they wait for comes, a time slice
// late. A round trip between two such ranks takes 4.5 ms on an H200, by stores and by puts alike.
//
// # What waits for kernels
//
// A kernel here may wait for another rank's, or for the host. A call of the driver that waits for kernels may then wait for
// what it keeps from happening itself. So none is made while a kernel of this process runs on the GPU:
//
//	cuMemFree, cuMemFreeHost             wait        Free puts them off until nothing runs
//	cuMemUnmap, cuMemHostUnregister,
//	cuGraphExecDestroy                   not tried   put off likewise
//	cuGraphInstantiate                   not tried   Capture waits for the end of what runs, then returns ErrBusy
//	cuModuleLoadData, cuModuleUnload     wait        Open loads all kernels that are package variables; a launch of
//	                                                 another waits for the end of what runs, then returns ErrBusy
//	cuLink*                              not tried   made where cuModuleLoadData is
//	cuMemHostAlloc of 64 MiB             may wait    AllocHost of more than 1 MiB likewise
//	cuMemcpy within the device,          room for    Stream.Copy and Fill; nothing here calls them otherwise
//	cuMemsetD8 of 256 MiB                threads     while a kernel runs
//	cuMemAlloc of 4 GiB, cuMemCreate,
//	cuMemMap and cuMemSetAccess of 2 MiB,
//	cuMemHostRegister of 4 KiB,
//	cuMemHostAlloc of 64 KiB,
//	cuStreamCreate, cuStreamDestroy and
//	cuStreamQuery without work, events   do not      at any time
//	cuCtxSetLimit                        not tried   made where cuModuleLoadData is
//	cuMemcpy from and to the host,
//	stream memory operations             do not      at any time: by copy engines, on streams without kernels
//	cuLaunchKernel                       does not    but for what its stream was told to wait for
//	cuCtxSynchronize, cuStreamSynchronize,
//	anything on the NULL stream          wait        never called
//
// Measured on an H200 with driver 580.159 (CUDA 13.0): each call was timed beside a kernel that spins until the host ends it,
// once of one block and once filling the GPU; "wait" is that it returned only then. Copies wait no longer than 50 ms beside a
// full GPU whose threads all poll host memory, and 0.1 ms beside one block.
//
// Kernels that the process launches by other means, CUDA's runtime say, are seen by none of this: who launches them says so
// (Device.Foreign), and they count as ours do.
//
// # What keeps a kernel from starting
//
// A rank's kernel that is queued must start while others spin. Three things kept it, on an H200 (internal/gintest:
// TestManyRanksStart):
//
//   - It was its stream's first, and several threads launched at once: ranks stalled in 4 of 6 runs, and a first copy did so too. So
//     streams of the driver are made when the card is opened, do a kernel and copies before anybody has them, and are used again.
//   - There were more streams than hardware queues: of eight ranks with 36 for kernels one kernel stood behind another, and with 24
//     and 16 for copies a copy did. So no more are made first than there are queues, and who asks for more is told.
//   - Local memory, which a launch may have to make more of when nothing runs: the context holds what the largest kernel takes
//     from when it is loaded.
//
// A wait that comes to its deadline tells of each stream of the GPU how far it is, and with DOORBELL_CUDA_STARTS=1 whether the GPU
// has come to its kernel: if it has not, the queue is held up; if it has, and the kernel has done nothing, the GPU is.
//
// # How far a stream is
//
// After what somebody asks for (Record, Wait) the stream stores the count of its items into a word of pinned memory. The host
// polls that word, and another stream can be told to wait for it. On the H200 above, a launch takes 4.7 us, the mark 1.2 us
// more, and a host that polls the mark sees an empty kernel end 10.8 us after the launch; one that asks the driver 13.1 us.
//
// # Kernels that fail
//
// A kernel that traps, or reads where nothing is, ends the context: each later call of every rank on the GPU returns the same
// [device.KernelError]. The marks tell which kernels were known to have ended; if one was left, it is named. The driver tells
// a trap 3.5 s later on the H200 above. Ranks can still close what they have; then the context is released and the GPU is free
// for other processes, but this one gets no other context there: on driver 580 it fails like the first.
//
// # Memory that processes share
//
// A device that is opened Shared takes device memory by the driver's virtual memory management, in pieces of 2 MiB, each with a
// descriptor that another process imports and maps, and pinned memory as a memfd that each process maps and registers. Whether
// that works is tried at Open, once for each kind. Where it does not, memory is the process's own, and the ranks use a network.
// Device memory is taken so that NICs reach it (gpuDirectRDMACapable) where the GPU says that it can be.
//
// # Multicast
//
// With Options.Multimem, which DOORBELL_MULTIMEM=1 sets, GPUs of several processes can have one address stand for a piece of memory
// of each (NVLink multicast): an object that one of them makes and all join, then bind memory to, then map. None of the
// driver's functions for it is called otherwise: on machines whose NVLink fabric is not set up for it they can put GPUs out of
// service. It has run over the driver's test double alone.
//
// # Graphs
//
// Capture has the driver record a stream, on which nothing runs meanwhile and which nobody asks how far it is, and makes a
// graph of that. A replay is one item of the stream that it is queued on.
//
// # Memory
//
// Alloc's is device memory without a view for the host. AllocHost's is pinned memory, at one address for host and kernels.
// Go's collector knows neither: a [gpu.Ptr] into them is a number to it. Kernels of a checked build refuse atomics on what AllocHost
// took or Import mapped of the host's; that they do has run on no GPU. The device's clock (gpu.Thread.Clock) is
// %globaltimer: nanoseconds, the same for all multiprocessors of a GPU.
package cuda
