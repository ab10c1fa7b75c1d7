// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"cmp"
	"fmt"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
)

// Dispatch sends each of this rank's tokens once to each rank that has experts of it, and receives what this rank's experts
// are sent: it queues the kernels on the stream and returns. All ranks call it, with 0 tokens too. x.Weights may be nil.
// x's experts and weights stay as they are while the layout is used. When the stream is done, Check says whether it was
// right.
func (h *HTBuffer) Dispatch(st *doorbell.Stream, x Tokens) (*HTReceived, error) {
	const what = "dispatch"
	if err := cmp.Or(h.ready(what, st), h.check(what, x)); err != nil {
		return nil, err
	}
	r := &HTReceived{h: h, tokens: x, op: h.dispatches, life: h.life}
	a := h.args(r)
	if err := h.queue(st, h.places(a), h.tells(a), h.moves(a)); err != nil {
		return nil, err
	}
	h.dispatches++
	h.keep(st, r)
	h.moved(st, r)
	return r, nil
}

// DispatchAgain sends other rows of the same tokens to the same places: what was chosen and weighed is not looked at
// again. x is [N][Hidden] BF16, a multiple of 16. It is as a Dispatch of the same tokens with these rows.
func (h *HTBuffer) DispatchAgain(st *doorbell.Stream, r *HTReceived, x gpu.Ptr[byte]) error {
	const what = "dispatch again"
	if err := h.usable(what, st, r, "rows", x); err != nil {
		return err
	}
	a := h.args(r)
	a.X, a.Again = x, 1
	if err := h.queue(st, h.moves(a)); err != nil {
		return err
	}
	r.tokens.X = x
	h.moved(st, r)
	return nil
}

// places, tells and moves are the launches of a dispatch: the first two find where rows go, which is known where it is repeated.
func (h *HTBuffer) places(a HT) htLaunch { return launchHT(HTLayoutKernel, h.opt.layoutGrid(), a) }
func (h *HTBuffer) tells(a HT) htLaunch {
	return launchHT(HTTellKernel, doorbell.Grid{Blocks: 1, Warps: h.warps()}, a)
}
func (h *HTBuffer) moves(a HT) htLaunch { return launchHT(HTDispatchKernel, h.opt.sendGrid(&h.lay), a) }

// moved notes whose rows have come last.
func (h *HTBuffer) moved(st *doorbell.Stream, r *HTReceived) {
	if t := h.record(st); t != nil {
		t.newest = r
	} else {
		h.newest = r
	}
}

// HTCombined is where a combine writes, and what it adds.
type HTCombined struct {
	Y       gpu.Ptr[byte]    // [N][Hidden] BF16, a multiple of 16
	Weights gpu.Ptr[float32] // [N][TopK], nil: not wanted
	Bias    [2]gpu.Ptr[byte] // [N][Hidden] BF16 each, multiples of 16, nil: none
}

// Combine adds up, for each token of this rank, the rows of Outputs of all ranks that it went to, unweighted: who wants
// weights applies them before. In float32 and two levels, as moe/ref's HTCombine says to the bit; a token that went nowhere
// becomes its biases. It queues the kernels and returns; see Dispatch.
func (h *HTBuffer) Combine(st *doorbell.Stream, r *HTReceived, out HTCombined) error {
	const what = "combine"
	if err := h.usable(what, st, r, "output", out.Y); err != nil {
		return err
	}
	for _, b := range out.Bias {
		if b.Addr()&15 != 0 {
			return h.refuse(what, "bias at %#x, a multiple of 16 is accepted", b.Addr())
		}
	}
	a := h.args(r)
	a.Y, a.YWeights, a.Bias, a.Combine = out.Y, out.Weights, out.Bias, 1
	return h.queue(st, launchHT(HTReadyKernel, doorbell.Grid{Blocks: 1, Warps: 1}, a), launchHT(HTCombineKernel, h.opt.grid(&h.lay), a))
}

// warps is how many the kernels of one block run with: of a GPU as many as they may have.
func (h *HTBuffer) warps() int {
	if h.comm.Info().Device != "soft" {
		return 16
	}
	return min(h.comm.Size(), h.opt.Channels, 16)
}

// htLaunch queues a kernel.
type htLaunch func(*doorbell.Stream) error

func launchHT(k gpu.Kernel[HT], g doorbell.Grid, a HT) htLaunch {
	return func(st *doorbell.Stream) error { return doorbell.Launch(st, k, g, a) }
}

// queue launches an operation's kernels. Where the first is refused nothing was begun, and the call may be made again. Not where a
// later one is: the other ranks wait in vain then, as they do for a graph that has not recorded all.
func (h *HTBuffer) queue(st *doorbell.Stream, launches ...htLaunch) error {
	t := h.record(st)
	for i, launch := range launches {
		err := launch(st)
		switch {
		case err != nil && t != nil:
			t.broken = err
		case err != nil && i > 0:
			h.broken = err
		case err == nil && t == nil:
			h.stream = st
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// htTape is the layouts that a graph makes, whose rows it brings last, and why it is of no use.
type htTape struct {
	graph   *doorbell.Graph
	layouts []*HTReceived
	newest  *HTReceived
	broken  error
}

// record is the tape of a stream that records, nil for one that queues.
func (h *HTBuffer) record(st *doorbell.Stream) *htTape {
	g := st.Graph()
	if g == nil {
		return nil
	}
	if h.tape == nil || h.tape.graph != g {
		t, life := &htTape{graph: g}, h.life
		g.AtReplay(func(on *doorbell.Stream) error { return h.mayReplay(t, life, on) }, func(on *doorbell.Stream) {
			h.stream = on
			for _, r := range t.layouts {
				h.layouts[r.slot()] = r
			}
			h.newest = cmp.Or(t.newest, h.newest)
		})
		h.tape = t
	}
	return h.tape
}

// mayReplay refuses what was recorded before a recovery, or in part.
func (h *HTBuffer) mayReplay(t *htTape, life int, on *doorbell.Stream) error {
	const what = "replay"
	if err := h.ready(what, on); err != nil {
		return err
	}
	if life != h.life {
		return h.refuse(what, "the graph was recorded before the buffer was recovered")
	}
	if t.broken != nil {
		return fmt.Errorf("rank %d: %s: an operation was not recorded: %w", h.comm.Rank(), what, t.broken)
	}
	return nil
}

// keep has a new layout take its place, a graph's again at each replay.
func (h *HTBuffer) keep(st *doorbell.Stream, r *HTReceived) {
	h.layouts[r.slot()] = r
	if t := h.record(st); t != nil {
		t.layouts = append(t.layouts, r)
	}
}

func (h *HTBuffer) args(r *HTReceived) HT {
	l, o, x := &h.lay, &h.opt, &r.tokens
	own := func(off int) gpu.Ptr[byte] { return h.own.Ptr().Byte(uint64(off)) }
	i32 := gpu.Cast[int32, byte]
	a := HT{
		DC: h.dc.Device(), Win: h.win.Device(), X: x.X, Idx: x.Experts, Weights: x.Weights, Count: x.Count,
		Plan: r.plan(), Place: i32(r.layout(l.place)), Base: i32(r.layout(l.base)), Routes: i32(r.layout(l.routes)),
		Routed: i32(r.layout(l.routed)), Selections: i32(r.layout(l.selections)), ExpertRows: r.ExpertRows(),
		State: gpu.Cast[HTState](own(l.state)), Ways: gpu.Cast[HTWay](own(l.ways)), Before: i32(own(l.before)), Mine: i32(own(l.mine)),
		Chosen: i32(own(l.experts)), Scratch: own(l.scratch),
		Faults: Faults{Failed: gpu.Cast[uint32](own(l.failed)), Told: gpu.Cast[uint32](own(l.told)), Results: gpu.Cast[Result](h.host.Ptr())},
		RowsAt: uint64(l.rows), InfosAt: uint64(l.infos), OutsAt: uint64(l.outs), OutWeightAt: uint64(l.outWeights),
		RingsAt: uint64(l.rings), StageAt: uint64(l.stage), InAt: uint64(l.countsIn), OutAt: uint64(l.countsOut),
		Tokens: int32(x.N), MaxTokens: int32(o.MaxTokens), MaxRows: int32(o.MaxRows), Hidden: int32(o.Hidden),
		TopK: int32(o.TopK), Experts: int32(o.Experts), Align: int32(o.Align), Node: int32(l.node),
		Channels: int32(o.Channels), ChannelRows: int32(l.channelRows), Ring: int32(o.Ring), Chunk: int32(o.Chunk),
		RingBytes: uint64(l.ring), CountBytes: int32(l.counts), InfoBytes: int32(l.info),
		Head: int32(l.head), Msg: int32(l.msg), Answer: int32(l.answer),
		Format: int32(o.Format), Values: int32(o.Format.ValueBytes(o.Hidden)), Payload: int32(l.payload),
		OneNode: flag(l.nodes == 1),
	}
	if len(h.ranks) < l.ranks {
		a.Missing.Ranks = gpu.Cast[uint32](own(l.missing))
	}
	if h.measure {
		a.Meter = l.meter.on(own(0))
	}
	return a
}

func (h *HTBuffer) refuse(what, format string, args ...any) error {
	return fmt.Errorf("rank %d: %s: %s", h.comm.Rank(), what, fmt.Sprintf(format, args...))
}

// ready refuses what is closed or broken, and a second stream beside one that may not be done.
func (h *HTBuffer) ready(what string, st *doorbell.Stream) error {
	switch {
	case h.broken != nil:
		return fmt.Errorf("rank %d: %s: an earlier operation failed: %w", h.comm.Rank(), what, h.broken)
	case h.dc == nil:
		return closed(h.comm, what)
	case st.Graph() == nil && h.stream != nil && h.stream != st:
		return h.refuse(what, "operations of this buffer may still run on another stream: Wait or Check comes first")
	}
	return nil
}

// handle refuses a layout that is another's, or not there any more.
func (h *HTBuffer) handle(what string, r *HTReceived) error {
	switch {
	case r == nil:
		return h.refuse(what, "of what no dispatch brought: nil")
	case r.h != h:
		return h.refuse(what, "layout %d is another buffer's", r.op)
	case r.life != h.life:
		return h.refuse(what, "layout %d is gone: the buffer was recovered since", r.op)
	case h.layouts[r.slot()] != r:
		return h.refuse(what, "layout %d is forgotten: %d are kept (Layouts), and dispatch %d has made its own", r.op, h.opt.Layouts, h.layouts[r.slot()].op)
	}
	return nil
}

// usable refuses a call of a layout that it is not for, or whose tokens are not where they can be moved.
func (h *HTBuffer) usable(what string, st *doorbell.Stream, r *HTReceived, name string, at gpu.Ptr[byte]) error {
	if err := cmp.Or(h.ready(what, st), h.handle(what, r)); err != nil {
		return err
	}
	if r.tokens.N > 0 && (at.IsNil() || at.Addr()&15 != 0) {
		return h.refuse(what, "%d tokens need their %s at a multiple of 16, not at %#x", r.tokens.N, name, at.Addr())
	}
	return nil
}

func (h *HTBuffer) check(what string, x Tokens) error {
	if why := x.check(h.opt.MaxTokens); why != "" {
		return h.refuse(what, "%s", why)
	}
	return nil
}
