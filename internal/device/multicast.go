// SPDX-License-Identifier: Apache-2.0

package device

import "github.com/doorbell-net/doorbell/gpu"

// Multicaster is a device that can have one address stand for its memory and other devices'. Each of the devices takes the
// steps that Multicast has, in their order, and none takes one before all have taken the one before.
type Multicaster interface {
	// MayMulticast is nil, or why there is no multicast, and how there is.
	MayMulticast() error
	// NewMulticast makes an object for so many devices, of bytes of each: what one of them does, and no other.
	NewMulticast(devices, bytes int) (Multicast, error)
	// ImportMulticast is one that another process made, by its handle. The descriptor stays the caller's.
	ImportMulticast(h Handle) (Multicast, error)
}

// Multicast is an object of several devices' memory, as one of them has it.
type Multicast interface {
	// Handle is how the others import it.
	Handle() Handle
	// Join makes this device one of them.
	Join() error
	// Bind has the first bytes of memory of this device be what the address stands for here.
	Bind(m Memory) error
	// Ptr is the address, once all have bound: for kernels' multimem instructions alone.
	Ptr() gpu.Ptr[byte]
	// Free gives it back.
	Free() error
}
