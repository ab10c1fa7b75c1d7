// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"fmt"

	"github.com/doorbell-net/doorbell"
)

// HTOptions are those of the high-throughput form. They are the same on all ranks and stay for its life.
type HTOptions struct {
	MaxTokens int // tokens that a rank dispatches at once, at most; 1 to 65,536
	Hidden    int // elements of a token, a multiple of 8, 8 to 1,048,576
	TopK      int // selections of a token, 1 to 32
	Experts   int // in the whole world, 1 to 65,535
	// MaxRows is how many rows a rank can receive at once; 0: all tokens of all ranks. A dispatch that brings a rank more is
	// refused on all, and nothing of it is sent.
	MaxRows int
	// Layouts is how many dispatches can be repeated or combined at any time: those behind them are forgotten; 0: 1.
	Layouts int
	// Align is what an expert's number of rows is rounded up to (HTReceived.ExpertRows); 0: 1.
	Align int
	// NoLSA makes each rank a node of its own: puts in place of stores.
	NoLSA bool
	// Format is what tokens are sent in.
	Format Format
	// Channels is how many parts a rank's tokens are cut into, each with warps and rings of its own; 0: 2, and on a GPU as many as the
	// rank's share of it has room for: a block of 16 warps for each multiprocessor, of 8 where there are several nodes, which a
	// channel has two of.
	Channels int
	// Ring is how many messages there is room for from one rank to one node in a channel; 0: for all, so that no sender waits
	// for room (fixed slots). The memory for rows of other nodes grows with it.
	Ring int
	// Chunk is how many messages are put at once, at most half of Ring; 0: 8, or as many as that allows.
	Chunk int
	// Contexts is how many independent lanes of the network carry the channels; 0: 4, or fewer with fewer channels.
	Contexts int
}

// maxChannels is more than there are warps of them on a large GPU.
const maxChannels = 4096

// softChannels is how many channels there are of a software device.
const softChannels = 2

// channelsOf is how many channels a rank has room for.
func channelsOf(c *doorbell.Comm, nodes int) int {
	if c.Info().Device == "soft" {
		return softChannels
	}
	return min(max(c.Warps()/64, 1)*blockWarps(nodes)/min(nodes, 2), maxChannels)
}

// blockWarps is how many warps a block has that moves rows, at most: what the kernels' registers allow.
func blockWarps(nodes int) int {
	if nodes == 1 {
		return 16
	}
	return 8
}

// fill fills in what was left open; channels is how many there is room for.
func (o *HTOptions) fill(ranks, channels int) {
	o.Layouts, o.Align = max(o.Layouts, 1), max(o.Align, 1)
	if o.MaxRows == 0 {
		o.MaxRows = ranks * o.MaxTokens
	}
	if o.Channels == 0 {
		if o.Channels = max(min(channels, o.MaxTokens), 1); o.Channels > blockWarps(1) {
			o.Channels -= o.Channels % blockWarps(1) // so that blocks are full
		}
	}
	if o.Ring == 0 {
		o.Ring = max(o.perChannel(), 2)
	}
	if o.Chunk == 0 {
		o.Chunk = max(min(8, o.Ring/2), 1)
	}
	if o.Contexts == 0 {
		o.Contexts = max(min(4, o.Channels), 1)
	}
}

// perChannel is how many tokens of a rank a channel has at most.
func (o *HTOptions) perChannel() int { return (o.MaxTokens + o.Channels - 1) / max(o.Channels, 1) }

// Validate says what of the options is not accepted.
func (o HTOptions) Validate() error {
	err := limits{
		{"tokens", o.MaxTokens, 1, maxTokens}, {"hidden", o.Hidden, 8, maxHidden}, {"top-k", o.TopK, 1, MaxTopK},
		{"experts", o.Experts, 1, maxExperts}, {"rows", o.MaxRows, 0, 1 << 30}, {"layouts", o.Layouts, 0, 1024},
		{"alignment", o.Align, 0, 1 << 16}, {"channels", o.Channels, 0, maxChannels}, {"ring", o.Ring, 0, maxTokens},
		{"contexts", o.Contexts, 0, 1024},
	}.check(o.Format, o.Hidden)
	if err != nil {
		return err
	}
	if o.Ring == 1 || o.Chunk < 0 || o.Ring > 0 && o.Chunk > o.Ring/2 {
		return fmt.Errorf("moe: a ring of %d messages in chunks of %d: 2 or more are accepted, in chunks of up to half of them", o.Ring, o.Chunk)
	}
	return nil
}

// htLayout is where everything lies, in bytes; the same on all ranks.
type htLayout struct {
	ranks, locals, node, nodes int // locals: most experts of a rank; node: ranks of one
	payload, row               int // of a dispatched row; BF16
	info                       int // what is known of a received row
	head, msg, answer          int // before a message's payload; both; what a combine puts
	counts                     int // what a rank tells another of its layout
	ring                       int // of one channel and node
	channelRows                int // tokens of a channel
	// Offsets in the window.
	rows, infos, outs, outWeights, rings, stage, countsIn, countsOut, window int
	// Offsets in what is of this rank alone; those of a layout from its beginning.
	failed, told, state, ways, before, mine, experts, missing, scratch, layouts, own int
	place, base, routes, routed, selections, expertRows, layoutBytes                 int

	meter meterTables
}

func (o *HTOptions) layout(ranks, lsa int) htLayout {
	if o.NoLSA {
		lsa = 1
	}
	l := htLayout{ranks: ranks, locals: localExperts(o.Experts, 0, ranks), node: lsa, nodes: ranks / lsa, row: 2 * o.Hidden,
		payload: o.Format.RowBytes(o.Hidden), channelRows: o.perChannel()}
	l.info = round16(htInfoBytes + 8*o.TopK)
	l.head = round16(htHeaderBytes + 4*l.node + 8*o.TopK)
	l.msg, l.answer = l.head+l.payload, round16(l.row+4*o.TopK)
	l.counts = round16(4 * (ranks + o.Channels + l.locals))
	l.ring = o.Ring * max(l.msg, l.answer)
	if l.nodes == 1 {
		l.ring = 0
	}
	take := func(end *int, bytes int) (off int) {
		off = *end
		*end += (bytes + 63) &^ 63
		return off
	}
	w, ways := &l.window, o.Channels*l.nodes
	l.rows, l.infos = take(w, o.MaxRows*l.payload), take(w, o.MaxRows*l.info)
	l.outs, l.outWeights = take(w, o.MaxRows*l.row), take(w, o.MaxRows*4*o.TopK)
	l.rings, l.stage = take(w, ways*l.ring), take(w, ways*l.ring)
	l.countsIn, l.countsOut = take(w, 2*ranks*l.counts), take(w, 2*ranks*l.counts)
	p := &l.layoutBytes
	take(p, htPlanBytes)
	l.place, l.base = take(p, 4*o.MaxTokens*ranks), take(p, 4*ranks)
	l.routes, l.routed = take(p, 4*ways*l.channelRows*l.node), take(p, 4*ways)
	l.selections, l.expertRows = take(p, 4*l.locals), take(p, 4*l.locals)
	w = &l.own
	l.failed, l.told, l.state, l.ways = take(w, 4), take(w, 8), take(w, 64), take(w, 64*ways)
	l.before = take(w, 4*ranks*int(partsOf(int32(o.MaxTokens))))
	l.mine, l.experts, l.missing = take(w, 4*(ranks+ways)), take(w, 4*o.Experts), take(w, 4*ranks)
	l.meter = newMeterTables(func(bytes int) int { return take(w, bytes) }, ranks, l.locals)
	l.scratch, l.layouts = take(w, 2*o.Channels*l.payload), take(w, o.Layouts*l.layoutBytes)
	return l
}

// layoutGrid is what HTLayout runs with: a warp for each part of the tokens, and no more than there are channels.
func (o *HTOptions) layoutGrid() doorbell.Grid {
	return doorbell.Grid{Blocks: min(int(partsOf(int32(o.MaxTokens))), o.Channels), Warps: 1}
}

// grid is what HTCombine runs with: for each channel a warp that gathers and, where there are other nodes, one that gives back.
func (o *HTOptions) grid(l *htLayout) doorbell.Grid {
	warps := o.Channels * min(l.nodes, 2)
	return gridOf(warps, min(warps, blockWarps(l.nodes)))
}

// sendGrid is what HTDispatch runs with: the same, but of one node a warp for two channels where blocks are full: more rows that
// are stored at once are slower on a GPU (4 ranks on an H200: 475 us with 16 warps of a multiprocessor, 424 with 8).
func (o *HTOptions) sendGrid(l *htLayout) doorbell.Grid {
	g := o.grid(l)
	if l.nodes == 1 {
		g.Warps = min(g.Warps, blockWarps(1)/2)
	}
	return g
}

// gridOf is so many warps in blocks of at most so many.
func gridOf(warps, per int) doorbell.Grid {
	for warps%per != 0 {
		per--
	}
	return doorbell.Grid{Blocks: warps / per, Warps: per, Cooperative: warps > per}
}

func (o *HTOptions) needs(l *htLayout) doorbell.Needs {
	return doorbell.Needs{Contexts: o.Contexts, Signals: 4*l.ranks + 2*o.Channels*l.nodes}
}

// MessageBytes is what a dispatch puts to another node of lsaSize ranks for a token: a header of 16 bytes, the token's rows
// at the node's ranks and its selections and weights (4 bytes each), rounded up to 16, and its row. AnswerBytes is what a
// combine puts back for it: 2*hidden, and 4*topK, rounded up to 16.
func (o HTOptions) MessageBytes(lsaSize int) int { return o.sizes(lsaSize).msg }

// AnswerBytes is described at MessageBytes.
func (o HTOptions) AnswerBytes() int { return o.sizes(1).answer }

// LayoutBytes is what a rank of so many tells each of its layout in a dispatch, itself too: 4 bytes for each rank, channel and
// expert of the rank that has most, rounded up to 16.
func (o HTOptions) LayoutBytes(ranks int) int {
	o.Channels = max(o.Channels, 1)
	return o.layout(max(ranks, 1), 1).counts
}

// sizes is the layout of a world of one node: what is of no world is right.
func (o HTOptions) sizes(lsaSize int) htLayout {
	o.Channels, lsaSize = max(o.Channels, 1), max(lsaSize, 1)
	return o.layout(lsaSize, lsaSize)
}

// MemoryBytes is what the form takes of each rank's memory, exactly, or where the library chooses the channels of a GPU, with as
// many as there may be. With defaults filled in, G ranks of a node, N nodes:
//
//	info = 16 + 8*topK rounded up to 16
//	MaxRows * (row + info + 2*hidden + 4*topK)                          rows, what is known of each, outputs, their weights
//	+ 2 * channels*N*ring * max(MessageBytes, AnswerBytes), if N > 1    rings and staging
//	+ layouts * 4 * (MaxTokens*ranks + channels*N*perChannel*G)         perChannel = ceil(MaxTokens/channels)
//	+ channels * 2 * row + Needs.MemoryBytes + small tables
func (o HTOptions) MemoryBytes(ranks, lsaSize int, device string) int {
	ranks, lsaSize = max(ranks, 1), max(lsaSize, 1)
	channels := softChannels
	if device != "soft" {
		channels = maxChannels
	}
	o.fill(ranks, channels)
	l := o.layout(ranks, lsaSize)
	return l.window + l.own + resultBytes + o.needs(&l).MemoryBytes(ranks, lsaSize)
}
