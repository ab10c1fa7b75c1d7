// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

// Export registers memory of the host.
func (n *nic) Export(mem []byte, signals bool) ([]byte, error) {
	at := gpu.PtrOf(mem)
	return n.register(at, len(mem), accessOf(signals), n.byAddress)
}

// ExportDevice registers memory that only the device reaches: by a DMA buffer, else by its address.
func (n *nic) ExportDevice(at gpu.Ptr[byte], bytes int) ([]byte, error) {
	return n.register(at, bytes, accessOf(false), func(at gpu.Ptr[byte], bytes int, access uint32) (mr handle, keys mrKeys, err error) {
		err = n.far(at, bytes, func(addr uintptr, fd int) (err error) {
			if fd == noBuffer {
				mr, keys, err = n.regMR(n.pd, addr, bytes, access)
			} else {
				mr, keys, err = n.regDMABuf(n.pd, uint64(addr), bytes, fd, access)
			}
			return err
		})
		return mr, keys, err
	})
}

// far registers memory of the device: by where it is in a DMA buffer, which reg takes no longer than its registration, else by its
// address.
func (n *nic) far(at gpu.Ptr[byte], bytes int, reg func(addr uintptr, fd int) error) error {
	buf, offset, err := n.config.DMABuf(at, bytes)
	if err == nil {
		defer buf.Close() // the registration holds the buffer itself
		err = reg(uintptr(offset), int(buf.Fd()))
	}
	if err == nil {
		return nil
	}
	if peer := reg(uintptr(at.Addr()), noBuffer); peer != nil {
		return fmt.Errorf("neither as a DMA buffer (%w) nor by its address (%w), which takes the kernel's module nvidia_peermem", err, peer)
	}
	return nil
}

// accessOf is what others may do. Signals are strictly ordered, so each is behind the payload that was written before it;
// payload need not be among itself.
func accessOf(signals bool) uint32 {
	const both = accessWrite | accessRemoteWrite | accessRemoteRead
	if signals {
		return both | accessRemoteAtomic
	}
	return both | accessRelaxed
}

func (n *nic) byAddress(at gpu.Ptr[byte], bytes int, access uint32) (handle, mrKeys, error) {
	return n.regMR(n.pd, uintptr(at.Addr()), bytes, access)
}

// register registers memory by one way.
func (n *nic) register(at gpu.Ptr[byte], bytes int, access uint32, by func(gpu.Ptr[byte], int, uint32) (handle, mrKeys, error)) ([]byte, error) {
	refuse := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("mlx5 on rank %d: register %d bytes at %#x: %w", n.config.Rank, bytes, at.Addr(), err)
	}
	if bytes < 1 || at.Addr()%pageBytes != 0 {
		return refuse(fmt.Errorf("a multiple of %d and at least 1 byte are accepted: the NIC's addresses begin at 0 there", pageBytes))
	}
	mr, keys, err := by(at, bytes, access)
	if err != nil {
		return refuse(err)
	}
	if keys.local != keys.remote || keys.local == 0 || n.own[keys.remote] != 0 {
		err = fmt.Errorf("keys %#x and %#x were given: one that is new, for both ends, is accepted", keys.local, keys.remote)
		return refuse(errors.Join(err, n.deregMR(mr)))
	}
	n.own[keys.remote] = mr
	return exported{keys.remote, uint64(bytes)}.encode(), nil
}

// Withdraw ends the use of a key, also by this rank. It waits for what uses the memory just now.
func (n *nic) Withdraw(export []byte) {
	e, err := decodeExport(export)
	if mr := n.own[e.key]; err == nil && mr != 0 {
		delete(n.own, e.key)
		n.note(n.deregMR(mr))
	}
}

// Import takes a peer's key as it is. This rank's own is its local key too.
func (n *nic) Import(peer int, k netplugin.Key) (netplugin.Region, error) {
	e, err := decodeExport(k.Bytes)
	switch {
	case err != nil:
	case peer < 0 || peer >= n.config.Ranks:
		err = fmt.Errorf("0 to %d is accepted", n.config.Ranks-1)
	case k.Size < 0 || e.size != uint64(k.Size):
		err = fmt.Errorf("its export says %d bytes, its owner %d", e.size, k.Size)
	case peer == n.config.Rank && n.own[e.key] == 0:
		err = fmt.Errorf("key %#x of this rank is not registered", e.key)
	}
	if err != nil {
		return 0, fmt.Errorf("mlx5 on rank %d: import region of rank %d: %w", n.config.Rank, peer, err)
	}
	return netplugin.Region(e.key), nil
}

// Forget has nothing to do: the key is its owner's.
func (n *nic) Forget(netplugin.Region) {}
