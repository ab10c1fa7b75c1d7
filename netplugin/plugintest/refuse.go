// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/doorbell-net/doorbell/netplugin"
)

// bad is an operation that must fail.
type bad struct {
	what   string
	op     netplugin.Op
	bounds bool // its error wraps ErrBounds
}

// badOps are operations of rank 0 to rank 1 that reach outside a region.
func (w *world) badOps() []bad {
	n, sigs := uint64(w.size), uint64(8*words)
	data := w.random(8)
	put := w.put(0, 1, 0, 0, data)
	var all []bad
	add := func(bounds bool, what string, change func(op *netplugin.Op)) {
		op := put
		change(&op)
		all = append(all, bad{what, op, bounds})
	}
	for _, off := range []uint64{n - 7, n, n + 1, 1 << 63, 1<<64 - 8, 1<<64 - 4, 1<<64 - 1} {
		add(true, fmt.Sprintf("8 bytes at offset %#x of %#x", off, n), func(op *netplugin.Op) { op.DstOff = off })
		add(true, fmt.Sprintf("8 bytes at offset %#x of %#x, with a signal", off, n), func(op *netplugin.Op) {
			*op = w.raising(0, *op, 0, 1)
			op.DstOff = off
		})
		add(true, fmt.Sprintf("get of 8 bytes at offset %#x of %#x", off, n), func(op *netplugin.Op) {
			op.Kind, op.DstOff = netplugin.Get, off
		})
	}
	add(true, "0 bytes behind the end", func(op *netplugin.Op) { op.DstOff, op.Data = n+1, nil })
	for _, off := range []uint64{sigs - 4, sigs, sigs + 8, 1 << 63, 1<<64 - 8, 1<<64 - 1} {
		add(off&7 == 0, fmt.Sprintf("put with a signal at offset %#x of %#x", off, sigs), func(op *netplugin.Op) {
			*op = w.raising(0, *op, 0, 1)
			op.SigOff = off
		})
		add(off&7 == 0, fmt.Sprintf("signal at offset %#x of %#x", off, sigs), func(op *netplugin.Op) {
			*op = w.signal(0, 1, 0, 0, 1)
			op.SigOff = off
		})
	}
	for _, r := range []netplugin.Region{0, -1, 1 << 30, -1 << 31} {
		add(false, fmt.Sprintf("put to region %d", r), func(op *netplugin.Op) { op.Dst = r })
		add(false, fmt.Sprintf("get of region %d", r), func(op *netplugin.Op) { op.Kind, op.Dst = netplugin.Get, r })
		add(false, fmt.Sprintf("put with a signal in region %d", r), func(op *netplugin.Op) {
			*op = w.raising(0, *op, 0, 1)
			op.SigDst = r
		})
	}
	for _, k := range []netplugin.Kind{0, netplugin.Get + 1, 255} {
		add(false, fmt.Sprintf("operation of kind %d", k), func(op *netplugin.Op) { op.Kind = k })
	}
	return all
}

// checkBounds: an operation that reaches outside a region fails, writes nothing and raises nothing.
func checkBounds(t testing.TB, h Harness) {
	w := newWorld(t, h, 512)
	for i, b := range w.badOps() {
		b.op.Context = int32(i + 1) // nothing need pass where one failed
		kept := slices.Clone(b.op.Data)
		err := w.fails(0, b.op)
		if err == nil {
			t.Errorf("%s was not refused", b.what)
		} else if b.bounds && !errors.Is(err, netplugin.ErrBounds) {
			t.Errorf("%s: the error %q does not wrap ErrBounds", b.what, err)
		}
		if !bytes.Equal(kept, b.op.Data) {
			t.Errorf("%s changed the operation's Data", b.what)
		}
		w.verify("after " + b.what)
	}
	// What touches the ends from inside is none of these.
	w.send(0, w.raising(0, w.put(0, 1, 0, w.size-8, w.random(8)), words-1-len(w.ranks), 1), w.put(0, 1, 0, w.size, nil))
	w.verify("after a put up to the end")
}

// fails posts an operation that must fail, and returns its error.
func (w *world) fails(from int, op netplugin.Op) error {
	w.t.Helper()
	ops := []netplugin.Op{op}
	w.post(from, ops)
	w.finish()
	if ops[0].State != netplugin.Failed {
		return nil
	}
	return ops[0].Err
}

// checkFailure: what was posted before a failure takes effect, other contexts and peers go on, and on an ordered network
// nothing of its context and peer behind it does: a signal would cover what never came.
func checkFailure(t testing.TB, h Harness) {
	w := newWorld(t, h, 512)
	for i, place := range []int{0, 1, 3} {
		ctx := int32(10 + i)
		ops := make([]netplugin.Op, 6)
		for k := range ops {
			off := 96*i + 16*k
			ops[k] = w.raising(0, w.put(0, 1, ctx, off, w.random(16)), 20+k, uint64(k+1))
		}
		ops[place].DstOff = uint64(w.size)
		n := w.post(0, ops)
		w.finish()
		for k := range ops[:n] {
			failed := ops[k].State == netplugin.Failed
			if !failed {
				w.expect(&ops[k])
			}
			if want := k >= place; want != failed && (w.powers.Ordered || k <= place) {
				t.Errorf("operation %d of %d, of which number %d is out of bounds: failed is %v (%v)", k, len(ops), place, failed, ops[k].Err)
			}
		}
		w.verify(fmt.Sprintf("after operation %d of %d failed", place, len(ops)))
	}
	for to := range w.ranks {
		w.send(0, w.raising(0, w.put(0, to, 1, 440, w.random(16)), 2, 3))
	}
	w.send(1, w.raising(1, w.put(1, 0, 10, 490, w.random(16)), 2, 3))
	w.verify("after a failure, in other contexts and peers")
}

// checkRegions: regions are independent; one that is forgotten is none; what cannot be a region is refused.
func checkRegions(t testing.TB, h Harness) {
	w := newWorld(t, h, 512)
	a, b := w.use(0, 1, &w.ranks[1].data), w.use(0, 1, &w.ranks[1].data)
	if a == b {
		t.Fatalf("two imports gave region %d", a)
	}
	next := 0
	to := func(r netplugin.Region, ctx int32) netplugin.Op {
		op := w.put(0, 1, ctx, next, w.random(16))
		op.Dst = r
		next += 16 // apart, since nothing may order them
		return op
	}
	w.send(0, to(a, 0), to(b, 0))
	w.verify("after puts to two regions of the same memory")
	ep := w.ranks[0].ep
	ep.Forget(a)
	w.send(0, to(b, 0))
	if w.fails(0, to(a, 1)) == nil {
		t.Errorf("put to a forgotten region was not refused")
	}
	sig := w.signal(0, 1, 2, 0, 1)
	sig.SigDst = a
	if w.fails(0, sig) == nil {
		t.Errorf("signal in a forgotten region was not refused")
	}
	w.verify("after operations on a forgotten region")
	for _, r := range []netplugin.Region{a, a, 0, -1, 1 << 30} {
		ep.Forget(r) // nothing, and it is not there twice to be given out
	}
	c, d := w.use(0, 1, &w.ranks[1].data), w.use(0, 2%len(w.ranks), &w.ranks[2%len(w.ranks)].data)
	if c == d || c == b || d == b {
		t.Fatalf("imports after Forget gave regions %d and %d, beside region %d that is in use", c, d, b)
	}
	onD := to(d, 0)
	onD.Peer = int32(2 % len(w.ranks))
	w.send(0, to(c, 0), to(b, 0), onD)
	w.verify("after puts to regions that were imported after Forget")

	k := w.key(&w.ranks[1].data)
	if w.powers.Mapped {
		short := k
		short.Map = k.Map[:len(k.Map)-1]
		none := k
		none.Map = nil
		for _, k := range []netplugin.Key{short, none} {
			if _, err := ep.Import(1, k); err == nil {
				t.Errorf("import of %d bytes of which %d are mapped was not refused", k.Size, len(k.Map))
			}
		}
	}
	if len(k.Bytes) > 0 {
		k.Bytes = k.Bytes[:len(k.Bytes)-1]
		if _, err := ep.Import(1, k); err == nil {
			t.Errorf("import of a key that lacks its last byte was not refused")
		}
	}
	w.verify("after refused imports")
}

// checkClose: an endpoint closes, once or twice, writes nothing afterwards, and the others go on.
func checkClose(t testing.TB, h Harness) {
	w := newWorld(t, h, 512)
	w.send(1, w.raising(1, w.put(1, 0, 0, 0, w.random(16)), 0, 1))
	w.verify("before close")
	last := len(w.ranks) - 1
	m := w.ranks[last]
	m.closed = true
	for i := range 2 {
		if err := m.ep.Close(); err != nil {
			t.Errorf("close number %d: %v", i+1, err)
		}
	}
	op := []netplugin.Op{w.raising(last, w.put(last, 0, 0, 0, w.random(16)), 0, 1)}
	if n := m.ep.Post(op); n > 0 && op[0].State == netplugin.Done {
		t.Errorf("an endpoint that is closed says that it did an operation")
	}
	m.ep.Poll(m.done[:])
	m.ep.Forget(m.toData[0])
	w.send(0, w.raising(0, w.put(0, 1%last, 0, 8, w.random(16)), 0, 1))
	w.verify("after the close of another rank's endpoint")
}
