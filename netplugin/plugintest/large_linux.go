// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/netplugin"
)

const (
	far  = 1 << 32
	part = 1 << 20 // bytes that are compared
)

// checkLargeOffsets: 1 MiB goes to and comes from offsets around and above 2^32 of a region that is mostly untouched, and
// with DOORBELL_LONG=1 each of its bytes is put and compared. Not under the race detector, which is blind to such memory.
func checkLargeOffsets(t testing.TB, h Harness) {
	if raceEnabled || strconv.IntSize < 64 {
		return
	}
	const size = far + 8*part
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Logf("nothing is tried: mapping %d bytes of address space: %v", size, err)
		return
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	w := newWorld(t, h, 64)
	m := memory{mem: mem}
	m.key = w.export(1, mem, false)
	region := w.use(0, 1, &m)
	piece := min(w.powers.MaxBytes, part)
	move := func(kind netplugin.Kind, at int, data []byte) {
		t.Helper()
		var ops []netplugin.Op
		for i := 0; i < len(data); i += piece {
			op := w.put(0, 1, 0, 0, data[i:min(i+piece, len(data))])
			op.Kind, op.Dst, op.DstOff = kind, region, uint64(at+i)
			ops = append(ops, op)
		}
		if n := w.post(0, ops); ops[n-1].State == netplugin.Failed {
			t.Fatalf("%d bytes at offset %#x: %v", len(data), at, ops[n-1].Err)
		}
		w.settle()
	}
	data := w.random(part)
	for _, at := range []int{far - part/2, far + 3*part + 12345, size - part} {
		move(netplugin.Put, at, data)
		if !bytes.Equal(mem[at:at+part], data) {
			t.Errorf("%d bytes put at offset %#x are not there", part, at)
		}
		if low := mem[at&(far-1):][:part]; at >= far && len(bytes.Trim(low, "\x00")) > 0 {
			t.Errorf("%d bytes put at offset %#x wrote to offset %#x", part, at, at&(far-1))
		}
		into := make([]byte, part)
		if move(netplugin.Get, at, into); !bytes.Equal(into, data) {
			t.Errorf("%d bytes got from offset %#x are not those that were put", part, at)
		}
	}
	for i, off := range []uint64{size - 7, size, far * 2, far*2 + 64} {
		op := w.put(0, 1, int32(1+i), 0, data[:8])
		op.Dst, op.DstOff = region, off
		if w.fails(0, op) == nil {
			t.Errorf("8 bytes at offset %#x of %#x were not refused", off, size)
		}
	}
	if long, err := env.Long.Get(nil); err == nil && long {
		for at := 0; at < size; at += part {
			binary.NativeEndian.PutUint64(data, uint64(at))
			if move(netplugin.Put, at, data); !bytes.Equal(mem[at:at+part], data) {
				t.Fatalf("%d bytes put at offset %#x are not there", part, at)
			}
			_ = unix.Madvise(mem[at:at+part], unix.MADV_DONTNEED) // else the test takes as much memory as the region has
		}
	}
	w.verify(fmt.Sprintf("after puts to a region of %d bytes", size))
}
