// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// What a rank alone on a GPU sends to itself by stores, ours and what NCCL and NVSHMEM offer for that.
const (
	selfCommand = "gpu.test -test.run ^TestToSelf$/^cuda$ -test.v"
	ncclSelf    = ncclCommand + " self"
	nvshmemSelf = nvshmemCommand + " self"
)

// selfCases are messages by so many threads; bench/gpu has the same list.
func selfCases() (all []gpuCase) {
	for _, w := range []struct {
		threads int
		bytes   []int
	}{{1, []int{8, 128, 4096}}, {32, []int{8, 128, 4096, 65536}}, {256, []int{8, 128, 4096, 7168, 14336, 65536}},
		{1024, []int{8, 128, 4096, 7168, 14336, 65536, 1 << 20, 4 << 20}}} {
		for _, n := range w.bytes {
			way := fmt.Sprintf("to itself, %d B, %d threads", n, w.threads)
			c := gpuCase{name: "LSA " + way + ", NCCL", what: "one way, put and signal by stores", unit: "us", better: "less", target: "at most 1x",
				ours: selfCommand, pick: floorP50("LSA "+way, 1), peer: "stores by NCCL's LSA pointers, and a released flag", theirs: ncclSelf, pickTheirs: floorP50("NCCL LSA "+way, 1)}
			all = append(all, c)
			c.name, c.peer, c.theirs, c.pickTheirs = "LSA "+way+", NVSHMEM", "NVSHMEM's put with signal", nvshmemSelf, floorP50("NVSHMEM "+way, 1)
			all = append(all, c)
		}
	}
	return all
}
