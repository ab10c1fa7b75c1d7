// SPDX-License-Identifier: Apache-2.0

package softnic_test

import (
	"bytes"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// FuzzSend: whatever stands in a send queue and its record, no byte outside of regions changes, and each WQE that a doorbell
// told of has a CQE, or the NIC has told of the queue pair.
func FuzzSend(f *testing.F) {
	var b wqe.Block
	b.Write(wqe.FirstIndex, 1, 0, 2, 0, 1, 8)
	seed := make([]byte, 0, 2*wqe.Bytes)
	for _, w := range b {
		for i := range 8 {
			seed = append(seed, byte(w>>(8*i)))
		}
	}
	f.Add(seed, uint16(1))
	f.Add(append(seed, seed...), uint16(2))
	f.Add(seed, uint16(0xffff))
	f.Fuzz(func(t *testing.T, raw []byte, count uint16) {
		hosts := world(t, 2, "shm", "")
		guarded := make([]byte, 192)
		share(t, hosts, 0, guarded[64:128:128], false)
		share(t, hosts, 1, guarded[64:128:128], true)
		q, _ := join(t, hosts, 0, 1, 4)
		for i := 0; i+wqe.Bytes <= len(raw) && i < 4*wqe.Bytes; i += wqe.Bytes {
			var b wqe.Block
			for j := range wqe.Bytes {
				b[j/8] |= uint64(raw[i+j]) << (j % 8 * 8)
			}
			q.put(b)
		}
		gpu.Store(q.record, wqe.Record(uint64(count)), gpu.Release, gpu.ScopeSys)
		gpu.Store(q.Bell, 1, gpu.Release, gpu.ScopeSys)
		for range 20 {
			hosts[0].Poll()
		}
		if !hosts[0].Idle(q.Number) && len(hosts[0].failed) == 0 {
			var last wqe.Block
			for i := range last {
				last[i] = q.send.At(i).Load()
			}
			t.Errorf("%d WQEs, the first %x, are neither ended nor told of", count, last)
		}
		if !bytes.Equal(guarded[:64], make([]byte, 64)) || !bytes.Equal(guarded[128:], make([]byte, 64)) {
			t.Error("bytes outside of the regions changed")
		}
	})
}

// FuzzNames: what peers send of their memory and queue pairs is taken whole or refused.
func FuzzNames(f *testing.F) {
	hosts := world(f, 2, "shm", "")
	mem := make([]byte, 64)
	_, export := share(f, hosts, 1, mem, false)
	q, _ := join(f, hosts, 0, 1, 4)
	f.Add(export)
	f.Add(q.Address)
	f.Fuzz(func(t *testing.T, b []byte) {
		key, err := hosts[0].Import(1, netplugin.Key{Bytes: b, Map: mem, Size: len(mem)})
		if err == nil {
			hosts[0].Forget(key)
		}
		if err := hosts[0].Connect(q.Number, b); err == nil && len(b) != len(q.Address) {
			t.Errorf("connected by %x", b)
		}
		if _, err := hosts[0].Import(0, netplugin.Key{Bytes: b, Map: mem, Size: len(mem)}); err == nil {
			t.Errorf("memory of this rank that was never registered is imported by %x", b)
		}
		hosts[0].Withdraw(b)
	})
}
