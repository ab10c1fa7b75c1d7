// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// garbledArgs is what a rank of another node says that is not so: nil of either is what is so.
type garbledArgs struct {
	A              HT
	Layout         gpu.Ptr[byte] // in place of what it tells of its layout
	Message        gpu.Ptr[byte] // in place of the head of its message
	Layouts, Heads int
}

// garbledTell is what HTTell sends to rank 1 in the first dispatch, of other bytes.
var garbledTell = gpu.NewKernel("garbledTell", func(t gpu.Thread, a garbledArgs) {
	at := a.A.countsAt(a.A.OutAt, 1, 1)
	gpu.CopyWarp(t, a.A.Win.Base.Byte(at), a.Layout, uint64(a.Layouts))
	w := a.A.way(0, 1, a.A.Msg)
	w.c.Put(gin.ByWarp(t), gin.World(&a.A.DC), 1, a.A.Win, a.A.countsAt(a.A.InAt, 1, 0), a.A.Win, at, uint64(a.A.CountBytes), gin.StrongInc(a.A.told(0)))
}, "")

// garbledSend is what HTDispatch sends to rank 1, of other bytes.
var garbledSend = gpu.NewKernel("garbledSend", func(t gpu.Thread, a garbledArgs) {
	w := a.A.way(0, 1, a.A.Msg)
	gpu.CopyWarp(t, a.A.next(&w), a.Message, uint64(a.Heads))
	a.A.staged(t, &w)
}, "")

// FuzzHTForeignBytes has a rank of another node tell any layout and send any message. Who gets them ends, and writes nothing
// where no rows belong.
func FuzzHTForeignBytes(f *testing.F) {
	words := func(v ...int32) (b []byte) {
		for _, x := range v {
			b = binary.LittleEndian.AppendUint32(b, uint32(x))
		}
		return b
	}
	told := words(0, 1, 1, 1)                 // no row for rank 0, one for rank 1, one message, one selection
	good := words(0, 1, 0, 0, 0, 1, -1, 0, 0) // token 0 of the first dispatch, row 0, expert 1
	f.Add(told, good)
	f.Add(told, words(1, 1, 0, 0, 0, 1, -1, 0, 0))     // no such token
	f.Add(told, words(0, 7, 0, 0, 0, 1, -1, 0, 0))     // another dispatch's
	f.Add(told, words(0, 1, 0, 0, 2, 1, -1, 0, 0))     // a row that there is no memory for
	f.Add(told, words(0, 1, 0, 0, -2, 1, -1, 0, 0))    // one before it
	f.Add(told, words(0, 1, 0, 0, -1, 1, -1, 0, 0))    // none
	f.Add(told, words(0, 1, 0, 0, 1, 1<<30, -7, 0, 0)) // experts that are none
	f.Add(words(0, 1<<30, 1, 1), good)
	f.Add(words(-1, -1, -1, -1), good)
	f.Add(words(0, 1, 0, 1), good) // a message more than it tells of
	f.Add(words(0, 1, 1<<20, 1), good)
	f.Fuzz(func(t *testing.T, layout, message []byte) {
		cs, err := doorbell.Local(2, doorbell.Options{RanksPerNode: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			for _, c := range cs {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
		var h [2]*HTBuffer
		var errs [2]error
		var wg sync.WaitGroup
		for r := range h {
			wg.Go(func() {
				if h[r], errs[r] = NewHT(context.Background(), cs[r], HTOptions{MaxTokens: 1, Hidden: 8, TopK: 2, Experts: 2, Channels: 1, Ring: 2}); errs[r] == nil {
					errs[r] = garble(cs[r], h[r], layout, message)
				}
			})
		}
		wg.Wait()
		var e *Error
		if errs[0] != nil || errs[1] != nil && !errors.As(errs[1], &e) {
			t.Fatal(errs)
		}
		outs := make([]byte, h[1].lay.rings-h[1].lay.outs)
		if err := doorbell.Read(cs[1], outs, h[1].at(h[1].lay.outs)); err != nil {
			t.Fatal(err)
		}
		for i, b := range outs {
			if b != 0 {
				t.Fatalf("layout %x, message %x: byte %d behind rows and infos was written", layout, message, i)
			}
		}
	})
}

// garble has rank 0 say what is not so, and rank 1 dispatch no tokens.
func garble(c *doorbell.Comm, h *HTBuffer, layout, message []byte) error {
	st := c.Stream()
	defer st.Close()
	if c.Rank() == 1 {
		r := &HTReceived{h: h}
		h.keep(st, r)
		a := h.args(r)
		a.DC.Timeout = uint64(50 * time.Millisecond) // of these kernels alone: what never comes is waited for so long
		return errors.Join(h.queue(st, h.places(a), h.tells(a), h.moves(a)), h.Wait(context.Background(), st))
	}
	put := func(b []byte, most int) (gpu.Ptr[byte], int, error) {
		m, err := c.Alloc(64)
		if err != nil {
			return gpu.Ptr[byte]{}, 0, err
		}
		b = b[:min(len(b), most)]
		return m.Ptr(), len(b), m.Write(0, b)
	}
	a := garbledArgs{A: h.args(&HTReceived{h: h})}
	var err1, err2 error
	a.Layout, a.Layouts, err1 = put(layout, h.lay.counts)
	a.Message, a.Heads, err2 = put(message, h.lay.head)
	one := doorbell.Grid{Blocks: 1, Warps: 1}
	return errors.Join(err1, err2, doorbell.Launch(st, garbledTell, one, a), doorbell.Launch(st, garbledSend, one, a), st.Wait(context.Background()))
}
