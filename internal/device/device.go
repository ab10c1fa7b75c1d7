// SPDX-License-Identifier: Apache-2.0

// Package device says what a compute device is: memory that kernels and, where it can, the host reach; streams that
// run kernels in order; events. soft runs kernels as goroutines, cuda on an NVIDIA GPU; both pass the same tests.
package device

import (
	"context"
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
)

// Device is one rank's compute device. Its methods are safe for concurrent use.
type Device interface {
	// Name is "soft" or "cuda".
	Name() string
	// Alloc takes zeroed memory, aligned to 4,096 bytes. An error wraps ErrOutOfMemory when there is not enough.
	Alloc(bytes int) (Memory, error)
	// Import maps memory of another rank by its handle. The handle's descriptor stays the caller's.
	Import(h Handle) (Memory, error)
	// NewStream makes a stream. Close it before the device.
	NewStream() Stream
	// MaxCooperativeWarps is the size of the largest grid whose blocks are all resident at once.
	MaxCooperativeWarps() int
	// SetProgress names what a waiting device thread calls to move data; it returns true when it moved some. nil
	// for nothing. It is called from many threads at once and never blocks.
	SetProgress(f func() bool)
	// Close ends the device. Memory and streams must be gone.
	Close() error
}

// Memory is a piece of device memory, of this rank or mapped from another one.
type Memory interface {
	// Bytes is the host's view, nil where the host cannot reach it.
	Bytes() []byte
	// Ptr is the device's view.
	Ptr() gpu.Ptr[byte]
	// Handle is how another rank maps it. Valid until Free.
	Handle() Handle
	// Free gives it back; a second call does nothing. Nothing may use it afterwards.
	Free() error
}

// Handle names memory to another rank. Between processes the descriptor is passed; in one process Local is.
type Handle struct {
	FD    int // -1 for none
	Bytes int
	Local any
}

// Grid is the shape of a launch, in warps.
type Grid struct {
	Blocks int // blocks in the grid
	Warps  int // warps in a block
	// Cooperative grids have all their blocks resident, so that blocks may wait for one another. A grid that is not
	// must not depend on it.
	Cooperative bool
}

// MaxWarpsPerBlock is what a GPU's block of 1,024 threads holds.
const MaxWarpsPerBlock = 32

// Validate refuses shapes that no device runs, and cooperative ones larger than what is resident.
func (g Grid) Validate(maxCooperative int) error {
	switch {
	case g.Blocks < 1 || g.Blocks > 1<<31-1:
		return fmt.Errorf("launch: %d blocks asked for, 1 to %d are accepted", g.Blocks, 1<<31-1)
	case g.Warps < 1 || g.Warps > MaxWarpsPerBlock:
		return fmt.Errorf("launch: %d warps per block asked for, 1 to %d are accepted", g.Warps, MaxWarpsPerBlock)
	case g.Cooperative && g.Blocks*g.Warps > maxCooperative:
		return fmt.Errorf("launch: cooperative grid of %d x %d warps cannot be resident: this device holds %d warps",
			g.Blocks, g.Warps, maxCooperative)
	}
	return nil
}

// Stream runs its launches one after another.
type Stream interface {
	// Launch queues a kernel and returns. It takes over the call also when it fails. After a kernel failed, each
	// later launch returns that failure.
	Launch(c gpu.Call, g Grid) error
	// Record is an event that is done when all that was queued so far is.
	Record() Event
	// WaitEvent makes later launches wait for the event, which may be of another stream of the same device.
	WaitEvent(e Event)
	// Wait waits until all that was queued is done, and returns the stream's failure.
	Wait(ctx context.Context) error
	// Close waits for what runs and ends the stream.
	Close() error
}

// Event is a point in a stream.
type Event interface {
	// Done says whether the point was reached.
	Done() bool
	// Wait waits for it.
	Wait(ctx context.Context) error
}

// ErrOutOfMemory is what Alloc's error wraps when there is not enough memory.
var ErrOutOfMemory = errors.New("out of memory")

// KernelError is a kernel that failed: it panicked, or broke the device's rules.
type KernelError struct {
	Kernel      string
	Block, Warp int32
	Value       any
	Stack       string // of the failing thread; printed by %+v
}

func (e *KernelError) Error() string {
	return fmt.Sprintf("kernel %s failed in block %d, warp %d: %v", e.Kernel, e.Block, e.Warp, e.Value)
}

// Format prints the stack too for %+v.
func (e *KernelError) Format(f fmt.State, verb rune) {
	fmt.Fprint(f, e.Error())
	if verb == 'v' && f.Flag('+') {
		fmt.Fprintf(f, "\n%s", e.Stack)
	}
}
