// SPDX-License-Identifier: Apache-2.0

package ce

import (
	"encoding/binary"
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

// Post holds a target's lock while operations go there, so that they are gathered.
func (e *endpoint) Post(ops []netplugin.Op) int {
	var t *target
	defer func() {
		if t != nil {
			t.leave()
		}
	}()
	for i := range ops {
		if to := e.target(ops[i].Peer); to != t {
			if t != nil {
				t.leave()
			}
			if t = to; t != nil && !t.mu.TryLock() {
				t = nil
				return i
			}
		}
		took, err := e.post(t, &ops[i])
		if err != nil {
			ops[i].State, ops[i].Err = netplugin.Failed, err
			return i + 1
		}
		if !took {
			return i
		}
	}
	return len(ops)
}

// target is a rank that was met, nil for none.
func (e *endpoint) target(peer int32) *target {
	if peer < 0 || int(peer) >= e.cfg.Ranks {
		return nil
	}
	return e.peers[peer]
}

// post checks an operation, and does it or gathers it. It writes nothing before all of it was checked. The caller holds the lock
// of t, the operation's target.
func (e *endpoint) post(t *target, op *netplugin.Op) (took bool, err error) {
	fail := func(format string, args ...any) (bool, error) {
		return true, fmt.Errorf("ce on rank %d: to rank %d: %w", e.cfg.Rank, op.Peer, fmt.Errorf(format, args...))
	}
	if t == nil {
		return fail("no such rank was met: %w", netplugin.ErrPeerLost)
	}
	if e.lost[op.Peer] {
		return fail("%w", netplugin.ErrPeerLost)
	}
	n := op.Len()
	dst := e.region(op.Dst, op.Peer)
	switch op.Kind {
	case netplugin.Put, netplugin.Get:
		if n > MaxBytes {
			return fail("%d bytes in one operation, at most %d are accepted", n, MaxBytes)
		}
		if (op.Dst != 0 || n > 0) && !netplugin.InBounds(op.DstOff, uint64(n), dst.size) {
			return fail("%d bytes at offset %d of a window that has %d: %w", n, op.DstOff, dst.size, netplugin.ErrBounds)
		}
	case netplugin.Signal:
		n = 0
	default:
		return fail("operation of kind %d: put, signal and get are accepted", op.Kind)
	}
	if t.closed {
		return fail("%w: %w", errGone, netplugin.ErrPeerLost)
	}
	word, shadow, err := e.word(op)
	if err != nil {
		return true, err
	}
	if t.advance(); t.full() {
		return false, t.markNow()
	}
	return e.move(t, op, &dst, n, word, shadow)
}

// word is the signal's word and what it comes to hold; nil without a signal.
func (e *endpoint) word(op *netplugin.Op) (word gpu.Ptr[uint64], shadow *uint64, err error) {
	if !op.Raise {
		return word, nil, nil
	}
	r := e.region(op.SigDst, op.Peer)
	if r.sigs == nil || r.sigs.mem == nil {
		return word, nil, fmt.Errorf("ce on rank %d: no signals of rank %d with number %d: %w", e.cfg.Rank, op.Peer, op.SigDst, netplugin.ErrBounds)
	}
	if !netplugin.InBounds(op.SigOff, 8, uint64(len(r.sigs.mem))) || op.SigOff&7 != 0 {
		return word, nil, fmt.Errorf("ce on rank %d: signal at offset %d of rank %d, which has %d bytes; a multiple of 8 is accepted: %w",
			e.cfg.Rank, op.SigOff, op.Peer, len(r.sigs.mem), netplugin.ErrBounds)
	}
	return gpu.Cast[uint64](gpu.PtrOf(r.sigs.mem).Byte(op.SigOff)), &r.sigs.shadow[op.SigOff/8], nil
}

// move moves the bytes and raises the signal. The caller holds the target's lock.
func (e *endpoint) move(t *target, op *netplugin.Op, dst *region, n int, word gpu.Ptr[uint64], shadow *uint64) (took bool, err error) {
	queued, idle := false, t.idle()
	if n > 0 {
		// Not before what is queued: operations of a (context, peer) take effect in order.
		byCPU := idle && dst.host != nil && op.Data != nil
		if !byCPU && op.Data != nil && op.Src.IsNil() && (n > inlineBytes || op.Kind == netplugin.Get) {
			return false, t.markNow() // no device reaches its bytes: the CPU moves them when it may
		}
		switch {
		case byCPU && op.Kind == netplugin.Put:
			copy(dst.host[op.DstOff:], op.Data)
		case byCPU:
			copy(op.Data, dst.host[op.DstOff:])
		default:
			if err := t.queue(op, dst, n); err != nil {
				return true, err
			}
			queued = true
		}
	}
	if shadow != nil {
		if idle && !queued {
			gpu.Store(word, *shadow+op.SigAdd, gpu.Release, gpu.ScopeSys)
		} else if err := t.gather.Store(word, *shadow+op.SigAdd); err != nil {
			return true, err
		} else {
			queued = true
		}
		*shadow += op.SigAdd
	}
	if !queued {
		op.State = netplugin.Done
		return true, nil
	}
	t.queued++
	if shadow != nil && op.SigAdd-1 < markBelow {
		t.note(word, *shadow) // the word tells of itself
	} else if t.queued-t.marked >= unmarked {
		if err := t.markNow(); err != nil {
			return true, err
		}
	}
	f := &e.flying[op.Peer]
	f.ops[f.tail%marks] = flight{t.queued, op.Token}
	f.tail++
	op.State = netplugin.Posted
	return true, nil
}

// markBelow bounds what a signal may add to be a mark: all that are on their way together stay below half of the range, so
// that "the word has come that far" can be told.
const markBelow = 1 << 48

// isWord says whether an operation puts a word that came without a window to where a store may go: a store is sooner there
// than a copy.
func isWord(op *netplugin.Op, to gpu.Ptr[byte]) bool {
	return op.Kind == netplugin.Put && len(op.Data) == 8 && op.Src.IsNil() && to.Addr()&7 == 0
}

// queue gathers the copies of an operation between memory of the target and what the operation names.
func (t *target) queue(op *netplugin.Op, of *region, n int) error {
	far, near, nearHost := of.dev.Byte(op.DstOff), op.Src, false
	if op.Data != nil {
		if isWord(op, far) {
			return t.gather.Store(gpu.Cast[uint64](far), binary.LittleEndian.Uint64(op.Data))
		}
		if op.Src.IsNil() { // it came without a window, as the value of a put
			slot := t.inlineSlot(t.inline)
			t.inline++
			near = gpu.PtrOf(slot[:copy(slot, op.Data)])
		}
		nearHost = true
	}
	dst, src := far, near
	if op.Kind == netplugin.Get {
		dst, src = near, far
	}
	switch {
	case nearHost || of.host != nil:
		return t.gather.Copy(dst, src, n)
	case of.elsewhere:
		return t.gather.Between(dst, src, n)
	}
	return t.gather.Within(dst, src, n)
}
