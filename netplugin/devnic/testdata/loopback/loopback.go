// SPDX-License-Identifier: Apache-2.0

// Package loopback is the least that a NIC has to be: it reaches its own rank's memory alone, believes every WQE, and does
// each at once. It is an example, and shows that a NIC may come from any module.
package loopback

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

func init() { devnic.Register(provider{}) }

type provider struct{}

func (provider) Name() string { return "loopback" }

func (provider) Open(c devnic.Config) (devnic.NIC, error) {
	if c.Ranks != 1 {
		return nil, errors.New("loopback: one rank is accepted")
	}
	return &nic{config: c, memory: map[uint32][]byte{}}, nil
}

type nic struct {
	config devnic.Config
	memory map[uint32][]byte // by key
	keys   uint32
	pairs  []*pair // by number-1
}

type pair struct {
	devnic.QPConfig
	bell gpu.Ptr[byte]
	free func() error
	done uint64
}

func (n *nic) Facts() devnic.Facts {
	return devnic.Facts{Emulated: true, MaxMessage: wqe.MaxMessage, MaxDepth: 1 << 15}
}

func (n *nic) Export(mem []byte, _ bool) ([]byte, error) {
	n.keys++
	n.memory[n.keys] = mem
	return binary.BigEndian.AppendUint32(nil, n.keys), nil
}

func (n *nic) ExportDevice(gpu.Ptr[byte], int) ([]byte, error) {
	return nil, errors.New("loopback: memory of the host is accepted")
}

func (n *nic) Withdraw(export []byte) { delete(n.memory, binary.BigEndian.Uint32(export)) }

func (n *nic) Import(_ int, k netplugin.Key) (netplugin.Region, error) {
	return netplugin.Region(binary.BigEndian.Uint32(k.Bytes)), nil
}

func (n *nic) Forget(netplugin.Region) {}

func (n *nic) Create(c devnic.QPConfig) (devnic.QP, error) {
	bell, free, err := n.config.Pinned(64)
	if err != nil {
		return devnic.QP{}, err
	}
	n.pairs = append(n.pairs, &pair{c, bell, free, wqe.FirstIndex})
	number := uint32(len(n.pairs))
	return devnic.QP{Number: number, CQ: number, Bell: gpu.Cast[uint64](bell)}, nil
}

func (n *nic) Connect(uint32, []byte) error { return nil }

func (n *nic) rung(q *pair) bool {
	return wqe.Recorded(gpu.Load(q.Record, gpu.Acquire, gpu.ScopeSys)) != uint16(q.done)
}

func (n *nic) Idle(number uint32) bool { return !n.rung(n.pairs[number-1]) }
func (n *nic) Destroy(uint32)          {}
func (n *nic) Lose(int)                {}

func (n *nic) Quiet() bool {
	for _, q := range n.pairs {
		if n.rung(q) {
			return false
		}
	}
	return true
}

func (n *nic) Close() (err error) {
	for _, q := range n.pairs {
		err = errors.Join(err, q.free())
	}
	return err
}

func (n *nic) Poll() (worked bool) {
	for i, q := range n.pairs {
		for n.rung(q) && n.one(q, uint32(i+1)) {
			worked = true
		}
	}
	return worked
}

// one does the next WQE; false while it has to wait.
func (n *nic) one(q *pair, number uint32) bool {
	slot := int(q.done%uint64(q.Depth)) * wqe.Words
	var b wqe.Block
	for i := range b {
		b[i] = gpu.Load(q.Send.At(slot+i), gpu.Relaxed, gpu.ScopeSys)
	}
	w, err := b.Decode()
	if err != nil {
		panic(err)
	}
	near := func() []byte { return n.memory[w.LocalKey][w.Local:][:w.Bytes] }
	far := func() []byte { return n.memory[w.RemoteKey][w.Remote:][:w.Bytes] }
	switch {
	case w.Op == wqe.OpWait:
		if of := n.pairs[w.CQ-1]; int32(uint32(of.done-wqe.FirstIndex)-w.Until) <= 0 {
			return false
		}
	case w.Op == wqe.OpFetchAdd:
		at := gpu.Cast[uint64](gpu.PtrOf(far()))
		gpu.AtomicAdd(at, w.Add, gpu.AcqRel, gpu.ScopeSys)
	case w.Op == wqe.OpRead:
		copy(near(), far())
	case w.Inline:
		copy(far(), binary.LittleEndian.AppendUint64(nil, w.Value))
	case w.Op == wqe.OpWrite:
		copy(far(), near())
	}
	lap := q.done >> bits.TrailingZeros(uint(q.Depth))
	c := wqe.CQE{Is: wqe.CQEDone, Owner: uint8(lap & 1), Index: uint16(q.done), Number: number}
	c.Encode(&b)
	gpu.Store(q.Done.At(slot+wqe.TailWord), b[wqe.TailWord], gpu.Release, gpu.ScopeSys)
	q.done++
	return true
}
