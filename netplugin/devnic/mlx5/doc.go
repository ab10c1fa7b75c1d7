// SPDX-License-Identifier: Apache-2.0

// Package mlx5 is the hardware that kernels drive: NVIDIA's ConnectX NICs, by the direct interface of libmlx5, which is opened
// at run time with libibverbs. Nothing of it has run on hardware yet. What has run is all but the calls, over a double that keeps
// each command's bytes, which are compared with images made field by field from the headers; the calls, over a double in C whose
// structures are the headers'; and those that any RDMA device has (list, port, GIDs, protection domain, registration from
// address 0, address handle), once, over Linux 6.1's soft RoCE with rdma-core 44.
//
// The NIC's queues lie in the memory that the caller gives, which is registered with the NIC (umem): send queues in a GPU's memory,
// where kernels write WQEs at its speed, by a DMA buffer or else by the address; completion queues and doorbell records, which the
// host reads too, in pinned memory of the host. A queue pair is reliable, connected, without a receive queue, and has a completion
// queue of its own as deep as its send queue, which the NIC never stops for: no consumer index is told (oi). Those to this rank
// itself may wait for other queues' CQEs (cd_master). One page of doorbell registers serves all, as it does in UCX: a store of 8
// bytes rings.
//
// Memory is registered with addresses from 0, so it begins at a page (4,096 bytes). Where kernels' memory is a GPU's, it is
// named by a DMA buffer, and where that is refused by its address, for drivers that know peer memory.
//
// Signals lie in memory of the host, and payload may lie in a GPU's: two ways across PCIe, so that a signal may be seen before its
// payload where NIC and GPU do not share a switch. Whether that happens is the first thing to try on hardware.
//
// Whatever can be read is: what the NIC can, the port's state, MTU and link layer, whether packets need a GRH, the GIDs and
// which version of RoCE they are of, the priority of the traffic class and whether it loses packets. Of several NICs with an
// active port, rank r takes number r modulo their count, in the order of their names.
//
// Formats and numbers are facts of public headers: include/linux/mlx5/mlx5_ifc.h of Linux and providers/mlx5/{mlx5_ifc.h,
// mlx5dv.h} of rdma-core (commands, the direct interface), libibverbs/verbs.h (structures of the calls); fields that rdma-core
// lacks (the completion queue's, umem offsets) were compared with the copies in UCX and NVSHMEM.
package mlx5
