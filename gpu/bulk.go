// SPDX-License-Identifier: Apache-2.0

package gpu

// Bulk copies are made by the GPU's copy unit (TMA) while threads go on. One thread issues them, and they take multiples of
// 16 bytes at addresses that are multiples of 16. Their package needs //gpu:arch sm_90. On the CPU they are done when the
// call returns, which is as early as they may be.

// CopyBulkIn copies bytes from src, in memory of the device or of a peer, to dst in the block's shared memory, and then
// arrives at b with the bytes: announce them before by b.ArriveExpect. Who saw that phase complete reads dst.
func CopyBulkIn(_ Thread, dst, src Ptr[byte], bytes uint32, b *Mbarrier) {
	copyBulk(dst, src, bytes)
	b.change(0, -int64(bytes))
}

// CopyBulkOut copies bytes from src in the block's shared memory to dst, in memory of the device or of a peer. What other
// instructions stored in src is seen by it after FenceBulk of each thread that stored, and a SyncBlock. It belongs to the
// thread's group of copies that the next CommitBulk ends.
func CopyBulkOut(_ Thread, dst, src Ptr[byte], bytes uint32) { copyBulk(dst, src, bytes) }

// FenceBulk has bulk copies see what this thread stored in shared memory.
func FenceBulk() {}

// CommitBulk ends a group of this thread's copies out.
func CommitBulk() {}

// WaitBulkRead waits until the copies of all groups of this thread have read their sources: shared memory may be written.
func WaitBulkRead() {}

// WaitBulk waits until all groups of this thread are done. What they wrote is visible to this thread, and to others by its
// next release.
func WaitBulk() {}

func copyBulk(dst, src Ptr[byte], bytes uint32) {
	if (dst.Addr()|src.Addr()|uint64(bytes))&15 != 0 {
		panic("gpu: bulk copy: addresses and bytes have to be multiples of 16")
	}
	copyBytes(dst, src, int(bytes))
}
