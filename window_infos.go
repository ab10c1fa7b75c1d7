// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"encoding/binary"
	"errors"
	"sync"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/netplugin"
)

// windowInfos hands out the entries that device Windows point at. Their memory lives as long as the communicator, so
// that a stale Window reads a generation and nothing else.
type windowInfos struct {
	dev    device.Device
	ranks  int
	mu     sync.Mutex
	chunks []device.Memory
	spare  []uint32
	n      uint32
}

const infosPerChunk = 32

func (t *windowInfos) entryBytes() int { return abi.InfoBytes(t.ranks) }

func (t *windowInfos) at(id uint32) gpu.Ptr[abi.WindowInfo] {
	m := t.chunks[id/infosPerChunk]
	return gpu.Cast[abi.WindowInfo](m.Ptr().Byte(uint64(int(id%infosPerChunk) * t.entryBytes())))
}

func (t *windowInfos) take() (id uint32, p gpu.Ptr[abi.WindowInfo], err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.spare); n > 0 {
		id = t.spare[n-1]
		t.spare = t.spare[:n-1]
		return id, t.at(id), nil
	}
	if int(t.n) == len(t.chunks)*infosPerChunk {
		m, err := t.dev.Alloc(infosPerChunk * t.entryBytes())
		if err != nil {
			return 0, p, err
		}
		t.chunks = append(t.chunks, m)
	}
	id = t.n
	t.n++
	return id, t.at(id), nil
}

// fill writes an entry, but for its generation: sizes and keys by rank of the world, bases of the LSA team, whose first rank is
// lsa0.
func (t *windowInfos) fill(id uint32, offers []offer, keys []netplugin.Region, all gpu.Ptr[byte], lsa0 int, bases []gpu.Ptr[byte]) error {
	image := make([]uint64, abi.InfoBytes(t.ranks)/8)
	w := abi.Window{Info: gpu.Cast[abi.WindowInfo](gpu.PtrTo(&image[0]))}
	gpu.PtrTo(&w.Info.Raw().Multimem).Store(all)
	for r, o := range offers {
		p := abi.WindowPeer{Size: uint64(o.Size)}
		if i := r - lsa0; i >= 0 && i < len(bases) {
			p.Base = bases[i]
		}
		w.Peer(int32(r)).Store(p)
		abi.KeyOf(w.Info, int32(len(offers)), int32(r)).Store(uint32(keys[r]))
	}
	m, off := t.place(id)
	return m.Write(off, gpu.Slice(gpu.Cast[byte](w.Info), 8*len(image)))
}

// setGen makes the entry valid for windows of that generation, 0 for none. What fill wrote is visible before.
func (t *windowInfos) setGen(id, gen uint32) error {
	m, off := t.place(id)
	if m.Bytes() == nil {
		return m.Write(off, binary.LittleEndian.AppendUint32(nil, gen))
	}
	gpu.Store(gpu.PtrTo(&t.at(id).Raw().Gen), gen, gpu.Release, gpu.ScopeSys)
	return nil
}

// place is where an entry lies.
func (t *windowInfos) place(id uint32) (m device.Memory, off int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.chunks[id/infosPerChunk], int(id%infosPerChunk) * t.entryBytes()
}

func (t *windowInfos) give(id uint32) {
	t.mu.Lock()
	t.spare = append(t.spare, id)
	t.mu.Unlock()
}

func (t *windowInfos) free() error {
	var errs []error
	for _, m := range t.chunks {
		errs = append(errs, m.Free())
	}
	return errors.Join(errs...)
}
