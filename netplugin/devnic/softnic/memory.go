// SPDX-License-Identifier: Apache-2.0

package softnic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

// own is memory of this rank that was exported.
type own struct {
	mem       []byte        // nil where only the device reaches it
	dev       gpu.Ptr[byte] // the device's address, nil where the wire moves the host's bytes alone
	signals   bool
	withdrawn bool
	wire      []byte // the wire's export
}

// lend makes n bytes from off on what an operation of the wire reads or fills.
func (o *own) lend(op *netplugin.Op, off, n uint64) {
	if o.mem != nil {
		op.Data = o.mem[off : off+n : off+n]
	}
	if !o.dev.IsNil() {
		op.Src = o.dev.Byte(off)
	}
	op.Bytes = int(n)
}

// region is what a key stands for: memory of a peer, or of this rank.
type region struct {
	peer    int32
	number  uint32 // of the memory at its owner
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

// Export registers memory of the host.
func (n *nic) Export(mem []byte, signals bool) ([]byte, error) {
	wire, err := n.config.Wire.Export(mem, signals)
	if err != nil {
		return nil, err
	}
	o := &own{mem: mem, wire: wire}
	if n.config.Powers.DeviceMemory {
		o.dev = gpu.PtrOf(mem)
	}
	return n.register(o, len(mem), signals), nil
}

// ExportDevice registers memory that only the device reaches. No fetch-add reaches it: one of the host is none there.
func (n *nic) ExportDevice(at gpu.Ptr[byte], bytes int) ([]byte, error) {
	o := &own{dev: at}
	if x, ok := n.config.Wire.(netplugin.DeviceExporter); ok {
		var err error
		if o.wire, err = x.ExportDevice(at, bytes); err != nil {
			return nil, err
		}
	} // else the wire maps it
	return n.register(o, bytes, false), nil
}

func (n *nic) register(o *own, bytes int, signals bool) []byte {
	n.nextOwn++
	o.signals = signals
	n.own[n.nextOwn] = o
	return exported{n.nextOwn, uint64(bytes), signals, o.wire}.encode()
}

// Withdraw ends its use, also by this rank.
func (n *nic) Withdraw(export []byte) {
	e, err := decodeExport(export)
	o := n.own[e.number]
	if err != nil || o == nil {
		return
	}
	n.config.Wire.Withdraw(o.wire)
	o.withdrawn = true
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
	case len(n.regions) > math.MaxInt32:
		err = errKeys
	}
	r := &region{peer: int32(peer), number: e.number, size: e.size, signals: e.signals}
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
	n.regions = append(n.regions, r)
	return netplugin.Region(len(n.regions) - 1), nil
}

// Forget revokes a key.
func (n *nic) Forget(key netplugin.Region) {
	if r := n.region(uint32(key)); r != nil {
		n.unbid(func(f farewell) bool { return f.region == r })
		n.config.Wire.Forget(r.wire)
		n.regions[key] = nil
	}
}

// region is what a key stands for, nil for nothing.
func (n *nic) region(key uint32) *region {
	if uint64(key) >= uint64(len(n.regions)) {
		return nil
	}
	return n.regions[key]
}

// local is this rank's memory by a key.
func (n *nic) local(key uint32, addr, bytes uint64) (*own, error) {
	r := n.region(key)
	switch {
	case r == nil || r.own == nil:
		return nil, n.noKey("local", key)
	case r.own.withdrawn:
		return nil, fmt.Errorf("local key %#x was revoked", key)
	case !netplugin.InBounds(addr, bytes, r.size):
		return nil, fmt.Errorf("%d bytes at %d of local key %#x, which has %d: %w", bytes, addr, key, r.size, netplugin.ErrBounds)
	}
	return r.own, nil
}

// noKey is why a key stands for nothing. Memory that the wire does not carry has key 0.
func (n *nic) noKey(whose string, key uint32) error {
	if key == 0 && !n.config.Powers.DeviceMemory {
		return fmt.Errorf("%s key 0 is of no memory, or of a device's, which the wire does not carry", whose)
	}
	return fmt.Errorf("%s key %#x is not there", whose, key)
}

// remote is a region of a peer by a key.
func (n *nic) remote(peer int, key uint32, addr, bytes uint64, atomic bool) (*region, error) {
	r := n.region(key)
	switch {
	case r == nil || int(r.peer) != peer:
		return nil, n.noKey("remote", key)
	case atomic && (!r.signals || addr&7 != 0):
		return nil, fmt.Errorf("fetch-add at %d of remote key %#x: a multiple of 8 of a region of signals is accepted", addr, key)
	case !netplugin.InBounds(addr, bytes, r.size):
		return nil, fmt.Errorf("%d bytes at %d of remote key %#x, which has %d: %w", bytes, addr, key, r.size, netplugin.ErrBounds)
	}
	return r, nil
}
