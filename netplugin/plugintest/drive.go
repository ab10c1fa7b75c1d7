// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"fmt"

	"github.com/doorbell-net/doorbell/netplugin"
)

// post hands over operations of a rank in order, the rest again when fewer were taken, until all are or one failed at
// once. It returns how many were taken. Each is done, failed, or in flight, where op.State tells its end after finish.
func (w *world) post(from int, ops []netplugin.Op) int {
	w.t.Helper()
	m := w.ranks[from]
	for i := range ops {
		ops[i].Token, ops[i].State, ops[i].Err = w.token, poison, nil
		w.token += 0x9e3779b97f4a7c15 // any number is legal
	}
	late := w.deadline(fmt.Sprintf("post %d operations on rank %d: Post takes no more", len(ops), from))
	taken := 0
	for taken < len(ops) {
		rest := ops[taken:]
		n := m.ep.Post(rest)
		if n < 0 || n > len(rest) {
			w.t.Fatalf("Post took %d of %d operations", n, len(rest))
		}
		for i := range rest[:n] {
			w.took(from, &rest[i])
			if rest[i].State == netplugin.Failed && i < n-1 {
				w.t.Errorf("Post took %d operations though number %d failed: it takes nothing after one that failed", n, i)
			}
		}
		for i := range rest[n:] {
			if op := &rest[n+i]; op.State != poison || op.Err != nil {
				w.t.Errorf("Post took %d of %d operations, and set State %d and error %v of number %d", n, len(rest), op.State, op.Err, n+i)
				op.State, op.Err = poison, nil
			}
		}
		w.looked()
		taken += n
		if n > 0 && rest[n-1].State == netplugin.Failed {
			break
		}
		if n < len(rest) {
			w.step()
			late()
		}
	}
	return taken
}

// took accounts for an operation that Post took.
func (w *world) took(from int, op *netplugin.Op) {
	w.t.Helper()
	ln := lane{from, op.Context, op.Peer}
	s := w.lanes[ln]
	if s == nil {
		s = &laneState{}
		w.lanes[ln] = s
	}
	s.posted++
	s.unsettled = true
	switch op.State {
	case netplugin.Posted:
		w.ranks[from].flying[op.Token] = flight{op, ln, s.posted}
	case netplugin.Done, netplugin.Failed:
		w.ended(flight{op, ln, s.posted}, op.Err, op.State == netplugin.Failed)
	default:
		w.t.Fatalf("Post took an operation of rank %d and did not set its State", from)
	}
}

// ended accounts for the end of an operation.
func (w *world) ended(f flight, err error, failed bool) {
	w.t.Helper()
	s := w.lanes[f.ln]
	if failed != (err != nil) {
		w.t.Errorf("an operation of rank %d to rank %d: failed is %v, and its error is %v", f.ln.from, f.ln.to, failed, err)
	}
	if failed && (s.failed == 0 || f.at < s.failed) {
		s.failed = f.at
	} else if !failed {
		s.good = max(s.good, f.at)
	}
	if w.powers.Ordered && s.failed != 0 && s.good > s.failed {
		w.t.Errorf("rank %d to rank %d, context %d: operation %d failed, and the later %d was done", f.ln.from, f.ln.to, f.ln.context, s.failed, s.good)
	}
}

// step polls each endpoint once.
func (w *world) step() {
	w.t.Helper()
	for r, m := range w.ranks {
		if m.closed {
			continue
		}
		room := m.done[:w.rng.IntN(maxPoll+1)]
		n := m.ep.Poll(room)
		if n < 0 || n > len(room) {
			w.t.Fatalf("Poll of rank %d reported %d completions into room for %d", r, n, len(room))
		}
		for _, c := range room[:n] {
			f, ok := m.flying[c.Token]
			if !ok {
				w.t.Fatalf("Poll of rank %d reported token %#x, which is not on its way: it came twice, or its operation ended in Post, or never was", r, c.Token)
			}
			delete(m.flying, c.Token)
			f.op.State, f.op.Err = netplugin.Done, c.Err
			if c.Err != nil {
				f.op.State = netplugin.Failed
			}
			w.ended(f, c.Err, c.Err != nil)
		}
		w.looked()
	}
}

func (w *world) looked() {
	if w.look != nil {
		w.look()
	}
}

// finish waits until no operation is in flight.
func (w *world) finish() {
	w.t.Helper()
	late := w.deadline("wait for the completions of operations that Post left on their way")
	for {
		n := 0
		for _, m := range w.ranks {
			n += len(m.flying)
		}
		if n == 0 {
			return
		}
		w.step()
		late()
	}
}

// settle finishes all operations, and sees to it that they have taken effect at their targets as far as the plugin's
// powers tell: true when they say that all have.
func (w *world) settle() bool {
	w.t.Helper()
	w.finish()
	if w.powers.RemoteCompletion {
		return true
	}
	if !w.powers.Ordered {
		return false
	}
	sure := true
	for ln, s := range w.lanes {
		if s.failed != 0 {
			sure = false // nothing passes there any more
			continue
		}
		if s.unsettled {
			w.fence(ln)
			s.unsettled = false
		}
	}
	return sure
}

// fence sends a strong signal down a lane and waits for it.
func (w *world) fence(ln lane) {
	w.t.Helper()
	word := words - 1 - ln.from
	op := []netplugin.Op{w.signal(ln.from, int(ln.to), ln.context, word, 1)}
	w.expect(&op[0])
	if w.post(ln.from, op); op[0].State == netplugin.Failed {
		w.t.Fatalf("signal of rank %d to rank %d: %v", ln.from, ln.to, op[0].Err)
	}
	late := w.deadline(fmt.Sprintf("wait for a signal of rank %d on rank %d", ln.from, ln.to))
	for w.word(int(ln.to), word) < w.ranks[ln.to].signal[word] {
		w.step()
		late()
	}
	w.finish()
}
