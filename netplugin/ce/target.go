// SPDX-License-Identifier: Apache-2.0

package ce

import (
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/dma"
)

const (
	inlineBytes = 256       // payload that came without a window
	inlineSlots = 1024      // of them on their way, a power of two
	marks       = 1 << 12   // marks on their way, a power of two
	unmarked    = marks / 2 // operations after which one is queued at the latest
)

// target is a rank as all who send to it see it.
type target struct {
	id   string
	rank int

	mu      sync.Mutex // what follows; a pass tries it and never waits
	cp      netplugin.Copier
	gather  *dma.Gather // of whoever holds the lock: empty when it is given back
	closed  bool
	err     error  // of a queue that did not end as it was closed
	pinned  []byte // mark word, inline ring, the gather's room
	free    func() error
	queued  uint64 // operations ever queued
	marked  uint64 // of them up to the last mark
	done    uint64 // of them known to have ended
	inline  uint64 // inline slots ever used
	ring    [marks]mark
	head    int // of ring: the oldest mark
	tail    int
	signals map[string]*signals
}

// mark says how far the queue is: all operations up to seq have ended when the word at at has reached want.
type mark struct {
	at   gpu.Ptr[uint64]
	want uint64
	seq  uint64
}

// signals is a region of signal words. The words are written by whoever holds the target's lock, or by the device in the
// order in which stores were queued; shadow is what they come to hold.
type signals struct {
	mem    []byte
	shadow []uint64
}

// targets are the ranks of this process, by what Address says.
var targets = struct {
	sync.Mutex
	m map[string]*target
}{m: map[string]*target{}}

func newTarget(rank int, open func() (netplugin.Copier, error)) (*target, error) {
	cp, err := open()
	if err != nil {
		return nil, err
	}
	t := &target{id: rand.Text(), rank: rank, cp: cp, signals: map[string]*signals{}}
	const room = 64 + inlineSlots*inlineBytes
	if t.pinned, t.free, err = cp.Pinned(room + dma.RoomBytes); err != nil {
		return nil, errors.Join(err, cp.Close())
	}
	t.gather = dma.NewGather(cp, t.pinned[room:])
	targets.Lock()
	targets.m[t.id] = t
	targets.Unlock()
	return t, nil
}

func (t *target) markWord() gpu.Ptr[uint64] { return gpu.Cast[uint64](gpu.PtrOf(t.pinned)) }

func (t *target) inlineSlot(n uint64) []byte {
	at := 64 + int(n%inlineSlots)*inlineBytes
	return t.pinned[at : at+inlineBytes]
}

// reach prepares for copies from and to memory of another device.
func (t *target) reach(far gpu.Ptr[byte], bytes int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cp.Reach(far, bytes)
}

// leave gives the lock back, and queues what was gathered before. Poll tells of an error.
func (t *target) leave() {
	_ = t.gather.Flush()
	t.mu.Unlock()
}

// export makes a region of signals known to senders.
func (t *target) export(mem []byte) string {
	id := rand.Text()
	t.mu.Lock()
	t.signals[id] = &signals{mem: mem, shadow: make([]uint64, len(mem)/8)}
	t.mu.Unlock()
	return id
}

// advance looks how far the queue is. The caller holds the lock.
func (t *target) advance() {
	for t.head != t.tail {
		m := &t.ring[t.head%marks]
		if int64(gpu.Load(m.at, gpu.Acquire, gpu.ScopeSys)-m.want) < 0 {
			return
		}
		t.done = m.seq
		t.head++
	}
}

// note remembers that word comes to hold want when all that was queued so far has ended.
func (t *target) note(word gpu.Ptr[uint64], want uint64) {
	t.ring[t.tail%marks] = mark{word, want, t.queued}
	t.tail++
	t.marked = t.queued
}

// markNow queues what was gathered, and a mark of its own if the last operations have none.
func (t *target) markNow() error {
	if t.err != nil || t.closed {
		return t.err
	}
	if t.marked != t.queued {
		if err := t.gather.Store(t.markWord(), t.queued); err != nil {
			return err
		}
		t.note(t.markWord(), t.queued)
	}
	return t.gather.Flush()
}

// idle says whether all that was queued had ended when advance looked. The caller holds the lock, so that nobody queues more.
func (t *target) idle() bool { return t.done == t.queued }

// drain waits until the queue is empty: a region that it writes goes away. The caller holds the lock, so that nobody queues more.
func (t *target) drain(bound time.Duration) error {
	if err := t.markNow(); err != nil {
		return err
	}
	end := time.Now().Add(bound)
	for t.advance(); !t.idle(); t.advance() {
		runtime.Gosched()
		if time.Now().After(end) {
			return fmt.Errorf("ce on rank %d: %d operations have not ended in %v", t.rank, t.queued-t.done, bound)
		}
	}
	return nil
}

// forget drops the marks in memory that goes away before it told of them: what they stood for ends with the next mark.
func (t *target) forget(mem []byte) {
	kept, last := t.head, t.done
	from := gpu.PtrOf(mem).Addr()
	for i := t.head; i != t.tail; i++ {
		if m := t.ring[i%marks]; m.at.Addr()-from >= uint64(len(mem)) {
			t.ring[kept%marks], last = m, m.seq
			kept++
		}
	}
	t.tail, t.marked = kept, last
}

// full says whether there is no room for another operation.
func (t *target) full() bool {
	return t.tail-t.head > marks-4 || t.queued-t.done >= inlineSlots-1
}

func (t *target) close() error {
	targets.Lock()
	delete(targets.m, t.id)
	targets.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	// Close waits for what is queued: the pinned memory is in use until then. Marks are not looked at afterwards: senders that have
	// operations here learn how those ended.
	t.err = t.cp.Close()
	t.head, t.done, t.marked = t.tail, t.queued, t.queued
	if err := errors.Join(t.err, t.free()); err != nil {
		return fmt.Errorf("close ce on rank %d: %w", t.rank, err)
	}
	return nil
}
