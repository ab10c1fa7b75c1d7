// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// copier moves bytes between Go's memory and the device's, through two pieces of pinned memory in turn, on a stream of its
// own. Copy engines do it, which no kernel holds up. A copy within the device would not do: it is a kernel.
type copier struct {
	mu     sync.Mutex
	stream *stream
	stage  uintptr
	used   [2]event // the last copy that uses each piece
	turn   int
}

// piece is half of the pinned memory. On an H200 the engine takes 12 us for one, the host as long to fill it.
const piece = 256 << 10

func (d *Device) newCopier() (*copier, error) {
	c := d.card
	out := new(outs)
	if r := c.do(cuMemHostAlloc, out.at(0), 2*piece, hostFlags); r != success {
		return nil, c.fault(cuMemHostAlloc, r, "%s asked for", size(2*piece))
	}
	t := &copier{stage: out.addr(0), stream: d.newStream(c.urgent)}
	if err := t.stream.failure(); err != nil {
		return nil, errors.Join(err, t.stream.Close(), c.discard(byCall(cuMemFreeHost, t.stage)))
	}
	t.used = [2]event{{s: t.stream}, {s: t.stream}}
	return t, nil
}

// close is called when the rank's streams and memory are gone.
func (t *copier) close() error {
	if err := t.stream.Close(); err != nil {
		return err
	}
	return t.stream.card.discard(byCall(cuMemFreeHost, t.stage))
}

// next waits until a piece is free, which it is when its last copy is done: no kernel stands before that.
func (t *copier) next() (buf []byte, addr uintptr, e *event, err error) {
	t.turn ^= 1
	addr = t.stage + uintptr(t.turn)*piece
	e = &t.used[t.turn]
	return ffi.Bytes(addr, piece), addr, e, t.wait(e)
}

// wait moves no data meanwhile: no copy needs that, and who does may come here, where mu is held.
func (t *copier) wait(e *event) error {
	ctx, cancel := context.WithTimeout(context.Background(), t.stream.dev.opt.Timeout)
	defer cancel()
	if err := e.wait(ctx, waiter{}); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return nil
}

// move queues a copy and notes that it uses a piece.
func (t *copier) move(dst, src uintptr, n int, e *event) error {
	if err := t.stream.Copy(pointer(dst), pointer(src), n); err != nil {
		return err
	}
	*e = *t.stream.Record().(*event)
	return nil
}

func (t *copier) write(to uintptr, src []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(src) > 0 {
		buf, addr, e, err := t.next()
		if err != nil {
			return err
		}
		n := copy(buf, src)
		if err := t.move(to, addr, n, e); err != nil {
			return err
		}
		src, to = src[n:], to+uintptr(n)
	}
	return t.wait(t.stream.Record().(*event))
}

func (t *copier) read(dst []byte, from uintptr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var late []byte // where the piece goes that is on its way
	for len(dst) > 0 || late != nil {
		var begun []byte
		last := t.turn
		if len(dst) > 0 {
			_, addr, e, err := t.next()
			if err != nil {
				return err
			}
			begun = dst[:min(len(dst), piece)]
			if err := t.move(addr, from, len(begun), e); err != nil {
				return err
			}
			dst, from = dst[len(begun):], from+uintptr(len(begun))
		}
		if late != nil {
			if err := t.wait(&t.used[last]); err != nil {
				return err
			}
			copy(late, ffi.Bytes(t.stage+uintptr(last)*piece, piece))
		}
		late = begun
	}
	return nil
}

// clear zeroes device memory: by a fill, which is fast and may need room for threads, where nothing runs; else by copies of
// zeros.
func (t *copier) clear(at uintptr, n int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stream.card.busy() {
		if err := t.stream.Fill(pointer(at), 0, n); err != nil {
			return err
		}
		return t.wait(t.stream.Record().(*event))
	}
	buf, addr, e, err := t.next()
	if err != nil {
		return err
	}
	clear(buf)
	for n > 0 {
		part := min(n, piece)
		if err := t.move(at, addr, part, e); err != nil {
			return err
		}
		at, n = at+uintptr(part), n-part
	}
	return t.wait(e)
}
