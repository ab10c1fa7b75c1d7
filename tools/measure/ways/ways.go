// SPDX-License-Identifier: Apache-2.0

// Package ways lists what a rank sends to itself: by our kernels and by those of NVSHMEM and NCCL (bench/gpu), and so the rows that
// compare them.
package ways

// Way is messages of so many bytes by so many threads, each in a kernel of its own.
type Way struct {
	Threads int
	Bytes   []int
}

// ToSelf is the list.
func ToSelf() []Way {
	return []Way{
		{1, []int{8, 128, 4096}},
		{32, []int{8, 128, 4096, 65536}},
		{256, []int{8, 128, 4096, 7168, 14336, 65536}},
		{1024, []int{8, 128, 4096, 7168, 14336, 65536, 1 << 20, 4 << 20}},
	}
}
