// SPDX-License-Identifier: Apache-2.0

package gpu

import "github.com/doorbell-net/doorbell/internal/sys"

// U32x4 is 16 bytes that are loaded and stored at once. A Ptr[U32x4] is a multiple of 16.
type U32x4 [4]uint32

// U32x2 is 8 bytes that are loaded and stored at once. A Ptr[U32x2] is a multiple of 8.
type U32x2 [2]uint32

// LoadNC reads 16 bytes that no thread writes while the kernel runs (ld.global.nc: it may come from a cache that is
// not coherent).
func LoadNC(p Ptr[U32x4]) U32x4 { return p.Load() }

// LoadEarly is p.Load() where it stands. A GPU's compilers put off a plain load until its value is used: one that is to be on its
// way while something else is looked at takes part in no order either, but keeps its place.
func LoadEarly(p Ptr[U32x4]) U32x4 { return p.Load() }

// CopyWarp copies bytes from src to dst with all lanes of the calling warp, plain accesses, 16 at a time where both
// are multiples of 16. The areas do not overlap. Nothing is ordered; follow it with a release.
func CopyWarp(t Thread, dst, src Ptr[byte], bytes uint64) {
	if WarpSize == 1 {
		copyBytes(dst, src, int(bytes))
		return
	}
	copyLanes(dst, src, bytes, uint64(t.Lane()), WarpSize)
}

// CopyBlock is CopyWarp with all threads of the block. It does not wait for them: follow it with SyncBlock.
func CopyBlock(t Thread, dst, src Ptr[byte], bytes uint64) {
	if WarpSize == 1 {
		// A contiguous share each, cut at cache lines, so that no two cores write one.
		share := (bytes/uint64(t.Warps()) + 63) &^ 63
		from := min(uint64(t.Warp())*share, bytes)
		to := min(from+share, bytes)
		if t.Warp() == t.Warps()-1 {
			to = bytes
		}
		copyBytes(dst.Byte(from), src.Byte(from), int(to-from))
		return
	}
	copyLanes(dst, src, bytes, uint64(t.Index()), uint64(t.Threads()))
}

func copyLanes(dst, src Ptr[byte], bytes, lane, lanes uint64) {
	done := uint64(0)
	if (dst.Addr()|src.Addr())&15 == 0 {
		done = bytes &^ 15
		at, step, last := 16*lane, 16*lanes, 16*(min(lanes, WarpSize)-1)
		// A load takes a GPU as long as many stores: several are on their way at once. A warp's lanes go one way together, else it waits for
		// the loads of one way and then for those of the other.
		for ; (at|last)+7*step < done; at += 8 * step {
			var v [8]U32x4
			// Each address is made of the one before: as multiples of the step they would all stay in registers. None is past the end.
			from, to := Cast[U32x4](src.Byte(at)), Cast[U32x4](dst.Byte(at))
			for k := range v {
				if k > 0 {
					from = from.Byte(step)
				}
				v[k] = from.Load()
			}
			for k := range v {
				if k > 0 {
					to = to.Byte(step)
				}
				to.Store(v[k])
			}
		}
		left, step32 := int32(done-at), int32(step) // it is above -step, and at most 8 steps
		if left+int32(at&last) > step32 {
			var v [8]U32x4 // as many as are left, at once too
			for k := range v {
				if next := int32(k) * step32; next < left {
					v[k] = Cast[U32x4](src.Byte(at + uint64(next))).Load()
				}
			}
			for k := range v {
				if next := int32(k) * step32; next < left {
					Cast[U32x4](dst.Byte(at + uint64(next))).Store(v[k])
				}
			}
		} else if left > 0 { // most of a block have one or none of what is small
			Cast[U32x4](dst.Byte(at)).Store(Cast[U32x4](src.Byte(at)).Load())
		}
	}
	for i := done + lane; i < bytes; i += lanes {
		dst.Byte(i).Store(src.Byte(i).Load())
	}
}

func copyBytes(dst, src Ptr[byte], n int) {
	if n > 0 {
		copy(bytesAt(dst, n), bytesAt(src, n))
	}
}

// CopyPastCaches is CopyThread by stores that go past the caches of a core: for who writes more than they hold. On a GPU it
// is CopyThread.
func CopyPastCaches(dst, src Ptr[byte], bytes uint64) {
	if WarpSize == 1 {
		if bytes > 0 {
			sys.CopyPastCaches(bytesAt(dst, int(bytes)), bytesAt(src, int(bytes)))
		}
		return
	}
	CopyThread(dst, src, bytes)
}

// CopyThread is CopyWarp with the calling thread alone.
func CopyThread(dst, src Ptr[byte], bytes uint64) {
	if WarpSize == 1 {
		copyBytes(dst, src, int(bytes))
		return
	}
	copyLanes(dst, src, bytes, 0, 1)
}
