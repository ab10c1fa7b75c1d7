// SPDX-License-Identifier: Apache-2.0

package gpu

// CopyLanesForTest is what a GPU's lanes do, done by the warps of the block: here no copy of the package gets there.
func CopyLanesForTest(t Thread, dst, src Ptr[byte], bytes uint64) {
	copyLanes(dst, src, bytes, uint64(t.Index()), uint64(t.Threads()))
}
