// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"encoding/binary"
	"testing"

	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// hostPairs is how many there are in a table.
const hostPairs = 256

// onHost looks as a kernel of a checked build does.
func onHost(t *testing.T, table uintptr, at uint64) bool {
	t.Helper()
	b := ffi.Bytes(table, 16*hostPairs)
	for i := 0; i < len(b); i += 16 {
		from, to := binary.NativeEndian.Uint64(b[i:]), binary.NativeEndian.Uint64(b[i+8:])
		if to == 0 {
			return false
		}
		if from <= at && at < to {
			return true
		}
	}
	t.Error("the table has no end")
	return false
}

// TestHostTable: kernels of a checked build find in a table what is memory of the host, own or imported, and from when it is
// given back not any more; device memory never.
func TestHostTable(t *testing.T) {
	for _, shared := range []bool{false, true} {
		d := newDouble(t)
		dev := d.open(cuda.Options{Shared: shared})
		early, far := must[device.Memory](t)(dev.AllocHost(100)), must[device.Memory](t)(dev.Alloc(100))
		s := dev.NewStream()
		asks := kernelOf("Nothing", header(".visible .global .align 8 .u64 "+abi.HostTable+";\n.visible .entry Nothing()\n{\n\tret;\n}\n"))
		if err := s.Launch(asks.Bind(struct{}{}), one); err != nil || within(t, s) != nil {
			t.Fatal(err)
		}
		table := uintptr(d.Count("host table"))
		if table == 0 {
			t.Fatal("a kernel that asks for the table has no address of it")
		}
		here := func(m device.Memory) bool { return onHost(t, table, m.Ptr().Addr()) }
		late := must[device.Memory](t)(dev.AllocHost(2 << 20))
		first, last := late.Ptr().Addr(), late.Ptr().Addr()+2<<20-1
		if !here(early) || !onHost(t, table, first) || !onHost(t, table, last) || onHost(t, table, last+1) || here(far) {
			t.Error("the table does not say what memory of the host there is")
		}
		if shared {
			m := must[device.Memory](t)(dev.Import(device.Handle{FD: early.Handle().FD, Bytes: 100}))
			if !here(m) {
				t.Error("what was imported is not in the table")
			}
			shut(t, m.Free)
			if here(m) || !here(early) {
				t.Error("an import that was given back is in the table, or what it was of is not")
			}
		}
		shut(t, early.Free)
		if here(early) || !here(late) {
			t.Error("what was given back is in the table, or another piece is not")
		}
		var all []device.Memory
		for range hostPairs { // more than there is room for
			all = append(all, must[device.Memory](t)(dev.AllocHost(100)))
		}
		if !here(all[0]) || !here(all[hostPairs-3]) || here(all[hostPairs-1]) {
			t.Error("a table is not as long as it is")
		}
		for _, m := range append(all, late, far) {
			shut(t, m.Free)
			if here(m) {
				t.Fatal("what was given back is in the table")
			}
		}
		shut(t, s.Close)
		shut(t, dev.Close)
	}
}
