// SPDX-License-Identifier: Apache-2.0

// Package device says what a compute device is: memory that kernels and, where it can, the host reach; streams that
// run kernels in order; events. soft runs kernels as goroutines, cuda on an NVIDIA GPU; both pass the same tests.
package device

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/doorbell-net/doorbell/gpu"
)

// Device is one rank's compute device. Its methods are safe for concurrent use.
type Device interface {
	// Name is "soft" or "cuda".
	Name() string
	// Powers says what this device is and can.
	Powers() Powers
	// Alloc takes zeroed memory of the device, aligned to 4,096 bytes. An error wraps ErrOutOfMemory when there is not
	// enough, and ErrBusy when taking it would wait for a kernel.
	Alloc(bytes int) (Memory, error)
	// AllocHost takes zeroed memory of the host that kernels reach at the same address, aligned to 4,096 bytes: for words
	// that the host polls or writes while a kernel runs. Its errors are Alloc's. No kernel may do an atomic there: a GPU's
	// is none against the host's.
	AllocHost(bytes int) (Memory, error)
	// Import maps memory of another rank by its handle. The handle's descriptor stays the caller's.
	Import(h Handle) (Memory, error)
	// MapRegisters lets kernels store to registers of other hardware that are mapped in this process, and says where they find
	// them. free ends that; the mapping itself stays the caller's.
	MapRegisters(mem []byte) (at gpu.Ptr[byte], free func() error, err error)
	// DMABuf opens memory of Alloc's as a buffer that the driver of other hardware can map: at is at offset in it. The caller
	// closes it. The error wraps ErrNotAvailable where kernels and other hardware alike use the host's memory.
	DMABuf(at gpu.Ptr[byte], bytes int) (buf *os.File, offset uint64, err error)
	// NewStream makes a stream. Close it before the device.
	NewStream() Stream
	// NewCopyStream makes one for copies and stores alone, which runs beside kernels where the device can.
	NewCopyStream() Stream
	// Capture records what f queues on the stream that it gets, which ends with f, and queues nothing. Its error is f's, or wraps ErrBusy when
	// what is to be made of it would wait for kernels that run. Close the graph before the device.
	Capture(f func(Stream) error) (Graph, error)
	// MaxCooperativeWarps is what a grid of any kernel whose blocks are all resident at once has at most, in warps. One
	// kernel may get less: CooperativeBlocks says it.
	MaxCooperativeWarps() int
	// CooperativeBlocks is how many blocks of so many warps of a kernel are resident at once, at most: its registers and
	// its block memory count.
	CooperativeBlocks(k *gpu.Code, warps int) (int, error)
	// SetProgress names what whoever waits here calls to move data: device threads where they are the CPU's, else host
	// threads that wait for a stream. It returns true when it moved some. nil for nothing. It is called from many threads at
	// once and never blocks.
	SetProgress(f func() bool)
	// Close ends the device. Memory and streams must be gone.
	Close() error
}

// Powers is what a device is and can.
type Powers struct {
	// Lanes is how many threads a warp has.
	Lanes int
	// HostView says that Bytes of Alloc's memory is not nil.
	HostView bool
	// Confined says that a kernel that fails ends its stream and nothing else. Otherwise it ends the device: each later
	// call of all ranks on that GPU in this process returns the failure, until they have all closed it.
	Confined bool
	// Multimem says that one store reaches the windows of all LSA peers, and one load reduces over them, or that this is
	// emulated.
	Multimem bool
}

// Memory is a piece of device memory, of this rank or mapped from another one.
type Memory interface {
	// Bytes is the host's view, nil where the host cannot reach it.
	Bytes() []byte
	// Write copies src to offset off and returns when it is there. Read copies from offset off into dst. Both run beside
	// kernels and wait for none; against one that uses the same bytes they are unordered. They are for setting up and
	// looking, not for the hot path: Stream.Copy is.
	Write(off int, src []byte) error
	Read(off int, dst []byte) error
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
	// later launch returns that failure. The error wraps ErrBusy when the kernel's code would have to be loaded first, which
	// waits for kernels that run.
	Launch(c gpu.Call, g Grid) error
	// Copy queues a copy between memory of this device, of AllocHost, and of other ranks that was imported. On a GPU a copy
	// engine does it, so that one on a stream without kernels runs beside kernels of others. The two may not overlap.
	Copy(dst, src gpu.Ptr[byte], bytes int) error
	// Copies queues several copies as one item, which may be done at once and in any order: none may write what another reads or
	// writes. The slices are as long as each other, no copy is of 0 bytes, and all are the caller's again when it returns.
	Copies(dst, src []gpu.Ptr[byte], bytes []uint64) error
	// Through queues a copy within this device as one item, by way of two pieces of pinned memory at via, of so many bytes each: on a
	// GPU one copy engine fills one while another empties the other. All such copies of a stream use the same memory. ahead says
	// that the copy may begin before what was queued before is done: it reads nothing that this writes, and since the last such copy
	// that did not, nothing else uses the pieces.
	Through(dst, src gpu.Ptr[byte], bytes int, via gpu.Ptr[byte], piece int, ahead bool) error
	// Fill queues a store of one byte to all of them. On a GPU it may need room for threads, and wait for it.
	Fill(dst gpu.Ptr[byte], value byte, bytes int) error
	// Store queues the store of an aligned word. Who reads it, on host or device, with an acquire load of system scope sees
	// all that was queued before.
	Store(at gpu.Ptr[uint64], value uint64) error
	// StoreBoth queues two stores as one item. Who sees the second sees the first, and all that was queued before.
	StoreBoth(first gpu.Ptr[uint64], value uint64, second gpu.Ptr[uint64], then uint64) error
	// Replay queues what a graph of this device recorded, as one item. A graph never runs beside itself: replays on several
	// streams wait for one another.
	Replay(g Graph) error
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

// Errors that others wrap.
var (
	// ErrOutOfMemory: there is not enough memory.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrBusy: a kernel runs that this would wait for, and that may wait for what the caller does next. Call again when the
	// streams of this process's ranks are idle.
	ErrBusy = errors.New("a kernel is running")
	// ErrClosed: the stream or the graph has ended.
	ErrClosed = errors.New("closed")
	// ErrNotAvailable: there is no such device here.
	ErrNotAvailable = errors.New("device not available")
)

// Span checks that [off, off+n) lies in memory of size bytes, for Memory's Write and Read.
func Span(what string, off, n, size int) error {
	if off < 0 || n < 0 || off > size || n > size-off {
		return fmt.Errorf("%s: %d bytes at offset %d asked for, the memory has %d", what, n, off, size)
	}
	return nil
}

// KernelError is a kernel that failed: it panicked, or broke the device's rules.
type KernelError struct {
	// Kernel is its name. Where the device does not say which of the kernels under way it was, all of them, with commas.
	Kernel      string
	Block, Warp int32 // -1 where the device does not say
	Value       any
	Stack       string // of the failing thread; printed by %+v
}

// Unwrap is the Value, if it is an error.
func (e *KernelError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func (e *KernelError) Error() string {
	if e.Block < 0 {
		return fmt.Sprintf("kernel %s failed: %v", e.Kernel, e.Value)
	}
	return fmt.Sprintf("kernel %s failed in block %d, warp %d: %v", e.Kernel, e.Block, e.Warp, e.Value)
}

// Format prints the stack too for %+v.
func (e *KernelError) Format(f fmt.State, verb rune) {
	fmt.Fprint(f, e.Error())
	if verb == 'v' && f.Flag('+') {
		fmt.Fprintf(f, "\n%s", e.Stack)
	}
}

// ValidThrough says what is wrong with the arguments of Stream.Through.
func ValidThrough(bytes, piece int) error {
	if bytes < 0 || piece < 1 {
		return fmt.Errorf("copy through pinned memory: %d bytes in pieces of %d asked for, 0 or more in pieces of 1 or more are accepted", bytes, piece)
	}
	return nil
}

// ValidCopies says what is wrong with the arguments of Stream.Copies.
func ValidCopies(dst, src []gpu.Ptr[byte], bytes []uint64) error {
	if len(src) != len(dst) || len(bytes) != len(dst) {
		return fmt.Errorf("copies: %d destinations, %d sources, %d sizes: as many of each are accepted", len(dst), len(src), len(bytes))
	}
	for i, n := range bytes {
		if n == 0 || n > math.MaxInt {
			return fmt.Errorf("copies: %d bytes in copy %d, 1 or more are accepted", n, i)
		}
	}
	return nil
}
