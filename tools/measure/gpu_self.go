// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/doorbell-net/doorbell/tools/measure/ways"
)

// What a rank alone on a GPU sends to itself by stores, ours and what NCCL and NVSHMEM offer for that.
const (
	selfCommand = "gpu.test -test.run ^TestToSelf$/^cuda$ -test.v"
	ncclSelf    = ncclCommand + " self"
	nvshmemSelf = nvshmemCommand + " self"
)

// selfCases set like beside like: NVSHMEM has a put with a signal, NCCL has pointers.
func selfCases() (all []gpuCase) {
	for _, w := range ways.ToSelf() {
		for _, n := range w.Bytes {
			way := fmt.Sprintf("to itself, %d B, %d threads", n, w.Threads)
			all = append(all,
				gpuCase{"LSA pointers " + way + ", NCCL", "one way, bare stores through a pointer and a released flag", "us", "less", "at most 1x", selfCommand, floorP50("LSA pointers "+way, 1),
					"the same through NCCL's LSA pointers", ncclSelf, floorP50("NCCL LSA "+way, 1)},
				gpuCase{"LSA " + way + ", NVSHMEM", "one way, put and signal by stores", "us", "less", "at most 1x", selfCommand, floorP50("LSA "+way, 1),
					"NVSHMEM's put with signal", nvshmemSelf, floorP50("NVSHMEM "+way, 1)})
		}
	}
	return all
}
