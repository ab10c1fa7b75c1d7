// SPDX-License-Identifier: Apache-2.0

package abi

// HostTable is what PTX of a checked build calls the address of its table of the host's memory, on which a kernel does no
// atomics. The device writes the address into the text before the driver compiles it.
//
// The table is pairs of 64-bit addresses in pinned memory: from, and behind the last byte. The host writes it while kernels look.
// A pair that is not used begins at HostNone, and ends at 1 if it once was; one that ends at 0 is behind the last.
const (
	HostTable = "doorbell_host_memory"
	HostNone  = ^uint64(0)
)
