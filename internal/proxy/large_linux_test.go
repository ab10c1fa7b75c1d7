// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/netplugin"
)

// tally is a network that looks at no byte: it compares where each piece begins with where the last one ended.
type tally struct {
	netplugin.Endpoint
	mapped, src, dst uint64 // bytes of the source's memory; where the next piece begins there, and at the target
	moved, raised    uint64
	raisedAt         uint64 // bytes that had moved
	wrong            error
}

func (n *tally) Poll([]netplugin.Completion) int { return 0 }

func (n *tally) Post(ops []netplugin.Op) int {
	for i := range ops {
		op := &ops[i]
		if at := n.mapped - uint64(cap(op.Data)); (at != n.src || op.DstOff != n.dst) && n.wrong == nil {
			n.wrong = fmt.Errorf("after %d bytes a piece goes from %#x to %#x, want from %#x to %#x", n.moved, at, op.DstOff, n.src, n.dst)
		}
		bytes := uint64(op.Len())
		n.moved, n.src, n.dst = n.moved+bytes, n.src+bytes, n.dst+bytes
		if op.Raise {
			n.raised++
			n.raisedAt = n.moved
		}
		op.State = netplugin.Done
	}
	return len(ops)
}

// TestBytesAround4GiB puts and gets sizes around 2^31 and 2^32, at offsets above them, out of memory that nobody may touch, over
// networks with narrow and wide limits, 2^32 bytes beyond a piece too: each byte goes once and in order, and the signal with the
// last.
func TestBytesAround4GiB(t *testing.T) {
	if strconv.IntSize < 64 {
		t.Skip("windows of this size need 64 bits")
	}
	const src, dst, mapped = 1<<32 + 4096, 1<<62 + 3, 1 << 34
	mem, err := unix.Mmap(-1, 0, mapped, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Skipf("mapping %d bytes of address space: %v", mapped, err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	for _, maxBytes := range []int{256 << 10, 1 << 30, 1<<31 - 1, 1<<32 - 1, 1 << 32, 1 << 40} {
		for _, size := range []uint64{1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1<<32 + min(uint64(maxBytes), 1<<32)} {
			for _, op := range []uint8{abi.OpPut, abi.OpGet} {
				n := &tally{mapped: mapped, src: src, dst: dst}
				r := newRig(t, shape{contexts: 1, peers: 1, depth: 2, signals: 1, counters: 1, maxBytes: maxBytes}, n, regionOf, []netplugin.Region{signalRegion(0)})
				if err := r.owner.AddWindow(t.Context(), &Window{ID: 1, Gen: 6, Bytes: mem, Size: mapped, Peers: []netplugin.Region{1}}); err != nil {
					t.Fatal(err)
				}
				d := r.desc(op, 1, size, dst, src)
				d.Flags = abi.FlagCounter
				if op == abi.OpPut {
					d.Flags |= abi.FlagSignalInc | abi.FlagStrong
				}
				r.put(0, 0, d, nil, true)
				what := fmt.Sprintf("%s of %#x bytes, %#x at once", opName(op), size, maxBytes)
				r.until(t, what, func() bool { return r.completed(0, 0) == 1 || r.status(0, 0) != abi.OK })
				if n.wrong != nil || r.status(0, 0) != abi.OK || n.moved != size || r.counter(0, 0) != 1 {
					t.Errorf("%s: %d bytes moved, status %v, counter %d, %v", what, n.moved, r.status(0, 0), r.counter(0, 0), n.wrong)
				}
				if op == abi.OpPut && (n.raised != 1 || n.raisedAt != size) {
					t.Errorf("%s: %d signals were raised, the last after %d bytes", what, n.raised, n.raisedAt)
				}
			}
		}
	}
}
