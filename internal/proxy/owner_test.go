// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/netplugin"
	"pgregory.net/rapid"
)

// queueModel is one queue, dumb: what was put into it, and what the network must see of that.
type queueModel struct {
	descs []abi.Desc
	cells [][]byte
	want  []seenOp
	upTo  []int // operations of the network up to and with each descriptor
}

// expect adds what the network must see of a descriptor: pieces, and its signal with the last one.
func (m *queueModel) expect(r *rig, ctx, peer int, d abi.Desc, cell []byte) {
	m.descs, m.cells = append(m.descs, d), append(m.cells, cell)
	region := regionOf(int(d.DstWin), peer)
	var data []byte
	switch d.Op {
	case abi.OpPut, abi.OpGet:
		data = r.mem[d.SrcWin][d.Src : d.Src+d.Size]
	case abi.OpPutValue:
		for i := range d.Size {
			data = append(data, byte(d.Src>>(8*i)))
		}
	case abi.OpPutCell:
		data = cell
	}
	off := d.DstOff
	for {
		piece := data[:min(len(data), r.maxBytes)]
		data = data[len(piece):]
		s := seenOp{Kind: netplugin.Put, Dst: region, DstOff: off, data: payload(piece)}
		off += uint64(len(piece))
		switch d.Op {
		case abi.OpSignal:
			s.Kind, s.Dst = netplugin.Signal, 0
		case abi.OpGet:
			s.Kind = netplugin.Get
		}
		if len(data) == 0 && d.Flags&(abi.FlagSignalInc|abi.FlagSignalAdd) != 0 {
			s.Raise, s.Strong, s.SigDst = true, d.Flags&abi.FlagStrong != 0, signalRegion(peer)
			s.SigOff, s.SigAdd = 8*(uint64(ctx*r.signals)+uint64(d.SigID)), d.SigVal
			if d.Flags&abi.FlagAtAddress != 0 {
				s.SigDst, s.SigOff = regionOf(r.windows, peer), d.SigOff
			}
			if d.Flags&abi.FlagSignalInc != 0 {
				s.SigAdd = 1
			}
		}
		m.want = append(m.want, s)
		if len(data) == 0 {
			break
		}
	}
	m.upTo = append(m.upTo, len(m.want))
}

func regionOf(window, peer int) netplugin.Region { return netplugin.Region(100 + 10*window + peer) }
func signalRegion(peer int) netplugin.Region     { return netplugin.Region(50 + peer) }

// fakeRig is a rig over a fakeNet, with the model beside it.
type fakeRig struct {
	*rig
	net   *fakeNet
	model map[lane]*queueModel
}

func newFakeRig(t testing.TB, s shape, rng *rand.Rand, table int) *fakeRig {
	f := &fakeRig{net: newFakeNet(rng), model: map[lane]*queueModel{}}
	var sigs []netplugin.Region
	for p := range s.peers {
		sigs = append(sigs, signalRegion(p))
	}
	f.rig = newRig(t, s, f.net, regionOf, sigs)
	if table > 0 {
		f.owner.tab = newTable(table)
	}
	return f
}

func (f *fakeRig) of(ctx, peer int) *queueModel {
	l := lane{f.dc.Context + int32(ctx), int32(peer)}
	if f.model[l] == nil {
		f.model[l] = &queueModel{}
	}
	return f.model[l]
}

// produce puts a good descriptor into a queue and its model.
func (f *fakeRig) produce(ctx, peer int, d abi.Desc, cell []byte, hint bool) bool {
	if !f.put(ctx, peer, d, cell, hint) {
		return false
	}
	f.of(ctx, peer).expect(f.rig, ctx, peer, d, cell)
	return true
}

// check compares all that can be seen with the model: the network saw what each queue holds, in order, and a queue's
// words say how far it is.
func (f *fakeRig) check() error {
	if len(f.net.broken) > 0 {
		return errors.New(f.net.broken[0])
	}
	if f.net.most > len(f.owner.tab.e) {
		return fmt.Errorf("%d operations were on their way, the table holds %d", f.net.most, len(f.owner.tab.e))
	}
	counters := make([][]uint64, f.contexts)
	for i := range counters {
		counters[i] = make([]uint64, f.counters)
	}
	dead := make([]bool, f.contexts)
	for ctx := range f.contexts {
		for peer := range f.peers {
			m, q := f.of(ctx, peer), f.queueOf(ctx, peer)
			log := f.net.log[lane{f.dc.Context + int32(ctx), int32(peer)}]
			if len(log) > len(m.want) || !slices.Equal(log, m.want[:len(log)]) {
				return fmt.Errorf("context %d, peer %d: the network saw\n%+v\nwant a beginning of\n%+v", ctx, peer, log, m.want)
			}
			if f.status(ctx, peer) != abi.OK {
				dead[ctx] = true
				continue
			}
			posted := 0 // descriptors that the network has whole
			for posted < len(m.upTo) && m.upTo[posted] <= len(log) {
				posted++
			}
			if got := f.taken(ctx, peer); got != posted {
				return fmt.Errorf("context %d, peer %d: consumed is %d, the network has %d whole", ctx, peer, got, posted)
			}
			flying := map[uint64]bool{}
			for i := range f.owner.tab.e {
				if e := &f.owner.tab.e[i]; e.q == q {
					flying[e.ticket-FirstTicket(uint64(f.depth))] = true
				}
			}
			prefix := 0
			for i := range posted {
				if !flying[uint64(i)] && prefix == i {
					prefix++
				}
				if !flying[uint64(i)] && m.descs[i].Flags&abi.FlagCounter != 0 {
					counters[ctx][m.descs[i].Counter]++
				}
			}
			if got := f.completed(ctx, peer); got != prefix {
				return fmt.Errorf("context %d, peer %d: completed is %d, %d have ended without a gap", ctx, peer, got, prefix)
			}
		}
		for id, want := range counters[ctx] {
			if got := f.counter(ctx, id); got != want && !dead[ctx] {
				return fmt.Errorf("context %d: counter %d is %d, want %d", ctx, id, got, want)
			}
		}
	}
	return nil
}

func (f *fakeRig) queueOf(ctx, peer int) *queue { return f.dc.queues[ctx*f.peers+peer] }

// drawDesc draws a good descriptor.
func drawDesc(t *rapid.T, f *fakeRig) (d abi.Desc, cell []byte) {
	ops := []uint8{abi.OpPut, abi.OpPut, abi.OpPutValue, abi.OpSignal, abi.OpGet}
	if f.cells {
		ops = append(ops, abi.OpPutCell)
	}
	op := rapid.SampledFrom(ops).Draw(t, "op")
	most := map[uint8]int{abi.OpPut: f.bytes, abi.OpGet: f.bytes, abi.OpPutValue: 8, abi.OpPutCell: abi.CellPayload}[op]
	size := rapid.IntRange(0, most).Draw(t, "size")
	if most == f.bytes && rapid.Bool().Draw(t, "edge") {
		size = min(f.bytes, f.maxBytes*rapid.IntRange(0, 4).Draw(t, "pieces")+rapid.IntRange(0, 1).Draw(t, "and"))
	}
	d = f.desc(op, rapid.IntRange(0, f.windows-1).Draw(t, "window"), uint64(size), rapid.Uint64Range(0, 1000).Draw(t, "offset"), 0)
	switch op {
	case abi.OpPut, abi.OpGet:
		d.Src = uint64(rapid.IntRange(0, f.bytes-size).Draw(t, "source"))
		d.SrcWin = uint32(rapid.IntRange(0, f.windows-1).Draw(t, "source window"))
	case abi.OpPutValue:
		d.Src = rapid.Uint64().Draw(t, "value")
	case abi.OpPutCell:
		cell = make([]byte, size)
		for i := range cell {
			cell[i] = byte(i*13 + int(d.DstOff))
		}
	}
	signal := 0
	if op != abi.OpGet {
		signal = rapid.IntRange(0, 3).Draw(t, "signal")
	}
	switch signal {
	case 1:
		d.Flags |= abi.FlagSignalInc | abi.FlagStrong
	case 2:
		d.Flags |= abi.FlagSignalAdd | abi.FlagStrong
		d.SigVal = rapid.Uint64().Draw(t, "add")
	case 3:
		d.Flags |= abi.FlagSignalAdd
	}
	if signal != 0 && rapid.Bool().Draw(t, "at an address") {
		f.at(&d, 8*rapid.Uint64Range(0, 40).Draw(t, "signal offset"))
	} else if signal != 0 {
		d.SigID = uint32(rapid.IntRange(0, f.signals-1).Draw(t, "signal id"))
	}
	if f.counters > 0 && rapid.Bool().Draw(t, "counts") {
		d.Flags |= abi.FlagCounter
		d.Counter = uint32(rapid.IntRange(0, f.counters-1).Draw(t, "counter"))
	}
	return d, cell
}

// TestOwner drives an owner over a network that may do anything, at random, and compares after each step: what the
// network sees is each queue's descriptors in order and in pieces, and on a network without order no signal before what it
// covers is complete; the table bounds what is on its way; consumed,
// completed and the counters say what has happened.
func TestOwner(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := shape{
			contexts: rapid.IntRange(1, 3).Draw(rt, "contexts"), peers: rapid.IntRange(1, 8).Draw(rt, "peers"),
			depth: 1 << rapid.IntRange(1, 5).Draw(rt, "log2 depth"), signals: 3, counters: rapid.IntRange(0, 2).Draw(rt, "counters"),
			windows: 2, cells: rapid.Bool().Draw(rt, "cells"), maxBytes: rapid.SampledFrom([]int{8, 16, 100}).Draw(rt, "most bytes"), bytes: 400,
		}
		if s.maxBytes < abi.CellPayload {
			s.cells = false // Core asks for cells only where one operation holds them
		}
		if rapid.Bool().Draw(rt, "whole") {
			s.maxBytes, s.cells = 300, true
		}
		f := newFakeRig(t, s, rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "network"), 1)), rapid.SampledFrom([]int{1, 2, 7, 64}).Draw(rt, "table"))
		f.net.again = rapid.SampledFrom([]float64{0, 0.1, 0.7}).Draw(rt, "again")
		f.net.late = rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(rt, "late")
		f.net.unordered = rapid.Bool().Draw(rt, "no order")
		f.dc.Unordered = f.net.unordered
		fails := rapid.Bool().Draw(rt, "fails")
		if fails {
			f.net.failAt, f.net.failLate = rapid.IntRange(0, 60).Draw(rt, "failing operation"), rapid.Bool().Draw(rt, "fails late")
			if rapid.Bool().Draw(rt, "peer lost") {
				f.net.failErr = fmt.Errorf("no route: %w", netplugin.ErrPeerLost)
			}
		}
		left := rapid.Bool().Draw(rt, "peers are gone") // whatever the network says, it is for that
		f.owner.Gone(func(int) bool { return left })
		rt.Repeat(map[string]func(*rapid.T){
			"produce": func(rt *rapid.T) {
				for range rapid.IntRange(1, 10).Draw(rt, "how many") {
					d, cell := drawDesc(rt, f)
					f.produce(rapid.IntRange(0, s.contexts-1).Draw(rt, "context"), rapid.IntRange(0, s.peers-1).Draw(rt, "peer"), d, cell, rapid.Bool().Draw(rt, "hint"))
				}
			},
			"pass": func(*rapid.T) { f.owner.Pass() },
			"land": func(rt *rapid.T) { f.net.land(rapid.IntRange(1, 20).Draw(rt, "how many")) },
			"": func(rt *rapid.T) {
				if err := f.check(); err != nil {
					rt.Fatal(err)
				}
			},
		})
		// All that was put gets through, but for the one queue that failed.
		f.net.again /= 2
		f.until(t, "all is through", func() bool {
			f.net.land(100)
			return f.through()
		})
		if err := f.check(); err != nil {
			rt.Fatal(err)
		}
		if free := len(f.owner.tab.free); free != len(f.owner.tab.e) || f.owner.flying != 0 {
			rt.Fatalf("%d of %d entries are free at the end, %d operations are on their way", free, len(f.owner.tab.e), f.owner.flying)
		}
		f.checkFailed(rt, fails, left)
	})
}

// through says whether each queue has ended: all of it, or by failure.
func (f *fakeRig) through() bool {
	for ctx := range f.contexts {
		for peer := range f.peers {
			if f.status(ctx, peer) == abi.OK && f.completed(ctx, peer) != len(f.of(ctx, peer).descs) {
				return false
			}
		}
	}
	return f.owner.flying == 0
}

// checkFailed compares what failed with what was told.
func (f *fakeRig) checkFailed(t *rapid.T, fails, left bool) {
	dead := 0
	for ctx := range f.contexts {
		for peer := range f.peers {
			s := f.status(ctx, peer)
			if s == abi.OK {
				continue
			}
			dead++
			want := abi.RemoteError
			if left || errors.Is(f.net.failErr, netplugin.ErrPeerLost) {
				want = abi.PeerLost
			}
			var re *RemoteError
			if len(f.failed) != 1 || !errors.As(f.failed[0], &re) || re.Rank != 0 || re.Context != ctx || re.Peer != peer || !errors.Is(re, f.net.failErr) || s != want {
				t.Fatalf("context %d, peer %d has %v; reported: %v", ctx, peer, s, f.failed)
			}
		}
	}
	if happened := fails && f.net.posted > f.net.failAt; happened != (dead == 1) || dead > 1 {
		t.Fatalf("a failure happened: %v; %d queues failed", happened, dead)
	}
	if err := f.owner.RemoveDevComm(context.Background(), f.dc); err != nil {
		t.Fatal(err)
	}
}
