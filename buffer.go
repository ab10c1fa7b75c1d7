// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"sync"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys"
)

// Buffer is memory of this rank's device, or a part of one.
type Buffer struct {
	comm *Comm
	root *Buffer // whose memory it is
	mem  device.Memory
	off  int
	n    int

	mu    sync.RWMutex // root: what follows, and its memory against Free
	users int          // windows over it
	freed bool
}

// Alloc takes zeroed memory of this rank's device, aligned to 4,096 bytes. An error wraps ErrOutOfMemory, with what is
// needed and what there is, when there is too little.
func (c *Comm) Alloc(bytes int) (*Buffer, error) { return c.take("alloc", bytes, c.dev.Alloc) }

// AllocHost takes zeroed memory of the host that kernels reach at the same address, aligned to 4,096 bytes. On a GPU it is
// pinned: the host reads and writes it while kernels run, the network reaches it without a copy, and kernels cross PCIe for
// each access. On the software device it is Alloc. Errors are Alloc's.
func (c *Comm) AllocHost(bytes int) (*Buffer, error) {
	return c.take("alloc host memory", bytes, c.dev.AllocHost)
}

func (c *Comm) take(what string, bytes int, from func(int) (device.Memory, error)) (*Buffer, error) {
	if err := c.begin(what); err != nil {
		return nil, err
	}
	defer c.calls.Done()
	if bytes < 1 {
		return nil, ofKind(ErrInvalid, fmt.Errorf("rank %d: %s: %d bytes asked for, at least 1 is accepted", c.rank, what, bytes))
	}
	m, err := from(bytes)
	if err != nil {
		return nil, fmt.Errorf("rank %d: %w", c.rank, err)
	}
	b := &Buffer{comm: c, mem: m, n: bytes}
	b.root = b
	c.mu.Lock()
	c.buffers[b] = struct{}{}
	c.mu.Unlock()
	return b, nil
}

// Write copies src to offset off, Read copies from there into dst, on every device, beside what runs on it. They are for
// setting up and looking. An error names the span and the buffer's size, or wraps ErrClosed after Free.
func (b *Buffer) Write(off int, src []byte) error {
	return b.access("write buffer", off, src, b.mem.Write)
}

// Read is Write's other direction.
func (b *Buffer) Read(off int, dst []byte) error {
	return b.access("read buffer", off, dst, b.mem.Read)
}

func (b *Buffer) access(what string, off int, mem []byte, do func(off int, mem []byte) error) error {
	r := b.root
	r.mu.RLock()
	defer r.mu.RUnlock()
	err := ofKind(ErrInvalid, device.Span(what, off, len(mem), b.n))
	if err == nil && r.freed {
		err = fmt.Errorf("%s: %w", what, ErrClosed)
	}
	if err == nil {
		err = do(b.off+off, mem)
	}
	if err != nil {
		err = fmt.Errorf("rank %d: %w", b.comm.rank, err)
	}
	return err
}

// Read copies values from an address of kernels', in any buffer of this rank that was not freed, into dst; Write copies src to
// one. They are Buffer.Read and Buffer.Write where a pointer is what there is, such as that of moe's rows. T has no pointers.
// An error names the span, or that no buffer holds it.
func Read[T any](c *Comm, dst []T, from gpu.Ptr[T]) error {
	return c.holding("read", from.Addr(), asBytes(dst), (*Buffer).Read)
}

// Write is Read's other direction.
func Write[T any](c *Comm, to gpu.Ptr[T], src []T) error {
	return c.holding("write", to.Addr(), asBytes(src), (*Buffer).Write)
}

func asBytes[T any](v []T) []byte {
	if len(v) == 0 {
		return nil
	}
	return gpu.Slice(gpu.Cast[byte](gpu.PtrTo(&v[0])), len(v)*int(gpu.SizeOf[T]()))
}

// holding does something with the buffer in which memory lies.
func (c *Comm) holding(what string, at uint64, mem []byte, do func(*Buffer, int, []byte) error) error {
	if len(mem) == 0 {
		return nil
	}
	var in *Buffer
	c.mu.Lock()
	for b := range c.buffers {
		if from := b.Ptr().Addr(); at >= from && at-from < uint64(b.n) {
			in = b
		}
	}
	c.mu.Unlock()
	if in == nil {
		return ofKind(ErrInvalid, fmt.Errorf("rank %d: %s: %d bytes at %#x, which is in no buffer of this rank", c.rank, what, len(mem), at))
	}
	return do(in, int(at-in.Ptr().Addr()), mem)
}

// Slice is bytes [off, off+n) of the buffer. It shares its memory and ends with it.
func (b *Buffer) Slice(off, n int) (*Buffer, error) {
	if off < 0 || n < 1 || off > b.n-n {
		return nil, ofKind(ErrInvalid, fmt.Errorf("rank %d: slice of %d bytes at %d: the buffer has %d", b.comm.rank, n, off, b.n))
	}
	return &Buffer{comm: b.comm, root: b.root, mem: b.mem, off: b.off + off, n: n}, nil
}

// Len is the buffer's size in bytes.
func (b *Buffer) Len() int { return b.n }

// Bytes is the host's view of the buffer, nil where the host cannot reach it and after Free. One that was taken before is not
// to be used after it.
func (b *Buffer) Bytes() []byte {
	r := b.root
	r.mu.RLock()
	defer r.mu.RUnlock()
	m := b.mem.Bytes()
	if m == nil || r.freed {
		return nil
	}
	return m[b.off : b.off+b.n : b.off+b.n]
}

// Ptr is the device's view of the buffer.
func (b *Buffer) Ptr() gpu.Ptr[byte] { return b.mem.Ptr().Byte(uint64(b.off)) }

// Free gives the memory back. It is refused while a window stands on it; a second call does nothing. A slice frees
// nothing.
func (b *Buffer) Free() error {
	if b.root != b {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.freed {
		return nil
	}
	if b.users > 0 {
		return ofKind(ErrBusy, fmt.Errorf("rank %d: free buffer: %d windows stand on it: close them first", b.comm.rank, b.users))
	}
	b.freed = true
	err := b.mem.Free()
	b.comm.mu.Lock()
	delete(b.comm.buffers, b) // last: Comm.Close waits for what is there
	b.comm.mu.Unlock()
	return err
}

// use counts a window on the buffer.
func (b *Buffer) use() error {
	r := b.root
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.freed {
		return fmt.Errorf("buffer: %w", ErrClosed)
	}
	r.users++
	return nil
}

func (b *Buffer) unuse() {
	b.root.mu.Lock()
	b.root.users--
	b.root.mu.Unlock()
}

// Reserve says beforehand whether each rank can take so many bytes, 0 or more: the ranks of one machine are added up.
// Collective. Nothing is taken. The error wraps ErrOutOfMemory, and is the same on all ranks of a machine.
func (c *Comm) Reserve(ctx context.Context, bytes int) error {
	var err error
	if bytes < 0 {
		err = ofKind(ErrInvalid, fmt.Errorf("rank %d: reserve: %d bytes asked for, 0 or more are accepted", c.rank, bytes))
		bytes = 0 // for the others, who are not to wait
	}
	have, known := sys.MemAvailable()
	text, jerr := json.Marshal([]uint64{uint64(bytes), have})
	all, gerr := c.AllGather(ctx, text)
	if err = cmp.Or(err, jerr, gerr); err != nil || !known {
		return err
	}
	need, host := uint64(0), 0
	for r, t := range all {
		if c.isOut(r) {
			continue
		}
		var v []uint64
		if err := json.Unmarshal(t, &v); err != nil || len(v) != 2 {
			return fmt.Errorf("rank %d: memory of rank %d: %q is not two numbers", c.rank, r, t)
		}
		if c.group.SameHost(r) {
			need += min(v[0], math.MaxUint64-need)
			have = min(have, v[1])
			host++
		}
	}
	if need > have {
		return fmt.Errorf("rank %d: %d ranks of this machine need %d bytes, have %d: %w", c.rank, host, need, have, ErrOutOfMemory)
	}
	return nil
}
