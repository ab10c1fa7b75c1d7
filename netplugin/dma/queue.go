// SPDX-License-Identifier: Apache-2.0

package dma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

const (
	depth       = 1024      // moves on their way, a power of two
	inlineBytes = 256       // of a move's bytes that no device reaches
	partBytes   = 256 << 10 // what the CPU copies at a time, at most: it bounds a pass
	markBytes   = 64
	longBytes   = 1 << 20 // of a copy between two devices that takes as long as its mark or longer
	longMost    = 4       // of them by one mark, where another mark is on its way
)

// Side is one end of a move.
type Side struct {
	Host []byte        // nil where only the device reaches the bytes
	Dev  gpu.Ptr[byte] // the device's address, nil where only the host reaches them
	// Elsewhere: it is memory of another device (netplugin.Key).
	Elsewhere bool
}

// At is the side from byte off on, of n bytes.
func (s Side) At(off uint64, n int) Side {
	if s.Host != nil {
		s.Host = s.Host[off : off+uint64(n)]
	}
	if !s.Dev.IsNil() {
		s.Dev = s.Dev.Byte(off)
	}
	return s
}

// Move is bytes to copy, and a word to raise when they are there.
type Move struct {
	To, From Side
	Bytes    int
	Word     gpu.Ptr[uint64] // of the host; nil for none
	Add      uint64
	Token    uint64
}

// byCPU says whether the host reaches both ends.
func (m *Move) byCPU() bool { return m.Bytes == 0 || m.To.Host != nil && m.From.Host != nil }

// part copies as much as the CPU does at a time, and says whether that was the rest.
func (m *Move) part() bool {
	n := min(m.Bytes, partBytes)
	if m.Bytes -= n; n > 0 {
		copy(m.To.Host[:n], m.From.Host)
		m.To.Host, m.From.Host = m.To.Host[n:], m.From.Host[n:]
	}
	return m.Bytes == 0
}

// within says whether both ends are memory of one device alone.
func (m *Move) within() bool {
	return m.To.Host == nil && m.From.Host == nil && m.To.Elsewhere == m.From.Elsewhere
}

func (m *Move) raise() {
	if !m.Word.IsNil() {
		gpu.AtomicAdd(m.Word, m.Add, gpu.Release, gpu.ScopeSys)
	}
}

// Queue does moves in the order in which they were pushed, by a device's copy engines where the CPU does not reach both
// ends. One caller at a time uses it.
type Queue struct {
	cp     netplugin.Copier
	gather *Gather
	pinned []byte // the mark, the inline slots, the gather's room
	free   func() error
	ended  func(token uint64, err error)
	moves  [depth]entry
	head   uint64 // the oldest that has not ended
	issued uint64 // the first whose copies are not queued yet
	tail   uint64
	queued uint64 // moves of the device's that were ever queued
	marked uint64 // of them before the last mark
	long   uint64 // of them behind it that are long, between two devices
	err    error  // the device's, which ends everything
}

type entry struct {
	Move
	after uint64 // it is done when so many moves of the device's are
}

// NewQueue makes a queue on a copier of its own. ended is told of each move that Push left on its way, in their order.
func NewQueue(open func() (netplugin.Copier, error), ended func(token uint64, err error)) (*Queue, error) {
	cp, err := open()
	if err != nil {
		return nil, err
	}
	q := &Queue{cp: cp, ended: ended}
	const room = markBytes + depth*inlineBytes
	if q.pinned, q.free, err = cp.Pinned(room + RoomBytes); err != nil {
		return nil, errors.Join(err, cp.Close())
	}
	q.gather = NewGather(cp, q.pinned[room:])
	return q, nil
}

// Idle says whether nothing is on its way.
func (q *Queue) Idle() bool { return q.head == q.tail }

// Full says whether there is room for no more moves.
func (q *Queue) Full() bool { return q.tail-q.head == depth }

// Push takes a move; the queue must not be full. The device hears of it by the next Flush or Poll. done says that it has ended
// already. An error is the move's, or the device's, which is every later move's too; nothing was moved then.
func (q *Queue) Push(m *Move) (done bool, err error) {
	if q.err != nil {
		return false, q.err
	}
	if m.byCPU() && q.Idle() && m.Bytes <= partBytes {
		m.part()
		m.raise()
		return true, nil
	}
	if !m.byCPU() && (m.To.Dev.IsNil() || m.From.Dev.IsNil() && m.Bytes > inlineBytes) {
		return false, fmt.Errorf("move of %d bytes between device memory and bytes that no device reaches: from those, %d are accepted", m.Bytes, inlineBytes)
	}
	q.moves[q.tail%depth] = entry{Move: *m}
	q.tail++
	q.issue()
	return false, nil
}

// issue queues the copies of moves whose turn it is. One that the CPU does waits for all before it, and all behind it wait
// for it: they may be of the same bytes.
func (q *Queue) issue() {
	for ; q.issued != q.tail && q.err == nil; q.issued++ {
		e := &q.moves[q.issued%depth]
		if e.byCPU() {
			if q.issued != q.head || !e.part() {
				return
			}
		} else if err := q.queue(&e.Move, q.slot(q.issued)); err != nil {
			q.err = err
			return
		}
		e.after = q.queued
	}
}

func (q *Queue) slot(n uint64) []byte {
	at := markBytes + int(n%depth)*inlineBytes
	return q.pinned[at : at+inlineBytes]
}

// queue queues the copies of a move; slot is room for bytes that no device reaches.
func (q *Queue) queue(m *Move, slot []byte) error {
	to, from := m.To.Dev, m.From.Dev
	if m.Bytes == 8 && m.From.Host != nil && to.Addr()&7 == 0 { // a store is sooner there than a copy
		q.queued++
		at, v := gpu.Cast[uint64](to), binary.LittleEndian.Uint64(m.From.Host)
		if err := q.gather.Store(at, v); err != nil || q.issued != q.head {
			return err
		}
		return q.note() // alone, it is waited for: the mark with it costs less than one at the next Poll
	}
	q.queued++
	if from.IsNil() {
		from = gpu.PtrOf(slot[:copy(slot, m.From.Host[:m.Bytes])])
	} else if m.within() {
		return q.gather.Within(to, from, m.Bytes)
	} else if m.To.Host == nil && m.From.Host == nil { // between two devices: each is a copy engine's work for long
		if m.Bytes >= longBytes {
			q.long++
		}
		return q.gather.Between(to, from, m.Bytes)
	}
	return q.gather.Copy(to, from, m.Bytes)
}

// note has the device say when all that was queued so far is done.
func (q *Queue) note() error {
	q.marked, q.long = q.queued, 0
	return q.gather.Store(q.mark(), q.queued)
}

// later says whether a mark is not due yet: the device copies nothing while it stores one, 3 us on an H200, where 4 MiB to another GPU
// take 13. Where the last one has come, the next is due: it comes to stand behind the copy that is under way.
func (q *Queue) later() bool {
	n := q.queued - q.marked
	return n == q.long && n < longMost && gpu.Load(q.mark(), gpu.Relaxed, gpu.ScopeSys) != q.marked
}

func (q *Queue) mark() gpu.Ptr[uint64] { return gpu.Cast[uint64](gpu.PtrOf(q.pinned)) }

// Poll ends moves that are done, raises their words and queues what may be queued next. It says whether it ended some.
func (q *Queue) Poll() (some bool) {
	q.issue() // a part more of what the CPU copies
	for q.err == nil && q.head != q.tail {
		done := gpu.Load(q.mark(), gpu.Acquire, gpu.ScopeSys)
		if q.head == q.issued || q.moves[q.head%depth].after > done {
			break
		}
		for q.head != q.issued && q.moves[q.head%depth].after <= done {
			e := &q.moves[q.head%depth]
			e.raise()
			q.head++
			q.ended(e.Token, nil)
			some = true
		}
		q.issue()
	}
	if q.err == nil && q.marked != q.queued && !q.later() {
		q.err = q.note()
	}
	q.Flush()
	for ; q.err != nil && q.head != q.tail; q.head++ {
		q.ended(q.moves[q.head%depth].Token, q.err)
		some = true
	}
	return some
}

// Flush tells the device of what was pushed. Poll ends what fails by it.
func (q *Queue) Flush() {
	if err := q.gather.Flush(); q.err == nil {
		q.err = err
	}
}

// Drain waits until all that was pushed has ended.
func (q *Queue) Drain(bound time.Duration) error {
	for end := time.Now().Add(bound); !q.Idle(); runtime.Gosched() {
		if !q.Poll() && time.Now().After(end) {
			return fmt.Errorf("%d moves have not ended in %v", q.tail-q.head, bound)
		}
	}
	return nil
}

// Reach prepares for moves to and from memory of another device.
func (q *Queue) Reach(far gpu.Ptr[byte], bytes int) error { return q.cp.Reach(far, bytes) }

// Close waits for what is queued, and gives the copier back. Nothing is told of moves that have not ended.
func (q *Queue) Close() error { return errors.Join(q.cp.Close(), q.free()) }
