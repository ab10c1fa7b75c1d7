// SPDX-License-Identifier: Apache-2.0

package softnic

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell/netplugin"
)

// own is memory of this rank that was exported.
type own struct {
	mem     []byte
	signals bool
	wire    []byte // the wire's export
}

// region is what a key stands for: memory of a peer, or of this rank.
type region struct {
	peer    int32
	size    uint64
	signals bool             // a fetch-add may reach it
	wire    netplugin.Region // as the wire names it
	own     *own             // nil for a peer's
}

// exported is what an Export says.
type exported struct {
	number  uint32 // of the own memory
	size    uint64
	signals bool
	wire    []byte
}

const (
	exportVersion = 1
	exportHead    = 14
)

func (e exported) encode() []byte {
	b := be32([]byte{exportVersion, 0}, e.number)
	if e.signals {
		b[1] = 1
	}
	return append(binary.BigEndian.AppendUint64(b, e.size), e.wire...)
}

func decodeExport(b []byte) (e exported, err error) {
	if len(b) < exportHead || b[0] != exportVersion || b[1] > 1 {
		return e, fmt.Errorf("export of %d bytes is none of version %d", len(b), exportVersion)
	}
	return exported{number: get32(b[2:]), signals: b[1] == 1, size: binary.BigEndian.Uint64(b[6:]), wire: b[exportHead:]}, nil
}

func be32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }
func get32(b []byte) uint32          { return binary.BigEndian.Uint32(b) }

// Export registers memory of this rank.
func (n *nic) Export(mem []byte, signals bool) ([]byte, error) {
	wire, err := n.config.Wire.Export(mem, signals)
	if err != nil {
		return nil, err
	}
	n.nextOwn++
	n.own[n.nextOwn] = &own{mem, signals, wire}
	return exported{n.nextOwn, uint64(len(mem)), signals, wire}.encode(), nil
}

// Withdraw ends its use, also by this rank.
func (n *nic) Withdraw(export []byte) {
	e, err := decodeExport(export)
	o := n.own[e.number]
	if err != nil || o == nil {
		return
	}
	n.config.Wire.Withdraw(o.wire)
	o.mem = nil
	delete(n.own, e.number)
}

// errKeys is that there are no more.
var errKeys = errors.New("all keys are in use or were")

// Import gives a peer's region a key. None is used twice: a WQE of before finds nothing.
func (n *nic) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	e, err := decodeExport(k.Bytes)
	switch {
	case err != nil:
	case peer < 0 || peer >= n.config.Ranks:
		err = fmt.Errorf("0 to %d is accepted", n.config.Ranks-1)
	case k.Size < 0 || e.size != uint64(k.Size):
		err = fmt.Errorf("its export says %d bytes, its owner %d", e.size, k.Size)
	case n.nextKey == 0:
		err = errKeys
	}
	r := &region{peer: int32(peer), size: e.size, signals: e.signals}
	if err == nil && peer == n.config.Rank {
		if r.own = n.own[e.number]; r.own == nil {
			err = fmt.Errorf("memory number %d of this rank is not registered", e.number)
		}
	}
	if err == nil {
		k.Bytes = e.wire
		r.wire, err = n.config.Wire.Import(peer, k)
	}
	if err != nil {
		return 0, fmt.Errorf("softnic on rank %d: import region of rank %d: %w", n.config.Rank, peer, err)
	}
	key := netplugin.Region(n.nextKey)
	n.nextKey++
	n.regions[key] = r
	return key, nil
}

// Forget revokes a key.
func (n *nic) Forget(key netplugin.Region) {
	if r := n.regions[key]; r != nil {
		n.config.Wire.Forget(r.wire)
		delete(n.regions, key)
	}
}

// local is bytes of this rank's memory by a key.
func (n *nic) local(key uint32, addr, bytes uint64) ([]byte, error) {
	r := n.regions[netplugin.Region(key)]
	switch {
	case r == nil || r.own == nil:
		return nil, fmt.Errorf("local key %#x is not there", key)
	case r.own.mem == nil:
		return nil, fmt.Errorf("local key %#x was revoked", key)
	case !netplugin.InBounds(addr, bytes, r.size):
		return nil, fmt.Errorf("%d bytes at %d of local key %#x, which has %d: %w", bytes, addr, key, r.size, netplugin.ErrBounds)
	}
	return r.own.mem[addr : addr+bytes : addr+bytes], nil
}

// remote is a region of a peer by a key.
func (n *nic) remote(peer int, key uint32, addr, bytes uint64, atomic bool) (*region, error) {
	r := n.regions[netplugin.Region(key)]
	switch {
	case r == nil || int(r.peer) != peer:
		return nil, fmt.Errorf("remote key %#x is not there", key)
	case atomic && (!r.signals || addr&7 != 0):
		return nil, fmt.Errorf("fetch-add at %d of remote key %#x: a multiple of 8 of a region of signals is accepted", addr, key)
	case !netplugin.InBounds(addr, bytes, r.size):
		return nil, fmt.Errorf("%d bytes at %d of remote key %#x, which has %d: %w", bytes, addr, key, r.size, netplugin.ErrBounds)
	}
	return r, nil
}
