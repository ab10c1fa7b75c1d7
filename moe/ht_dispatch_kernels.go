// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// HTDispatch brings each token's row to its places: by stores at the ranks of this node, by one message to each other node,
// where the rank with this one's place in its node passes it on. A warp of each channel sends, and one passes on what comes
// from other nodes: it waits for no one node and needs no room, so that each sender is served, whatever the routing.
//
//gpu:kernel warps=8
//gpu:variant OneNode=1
func HTDispatch(t gpu.Thread, a HT) {
	if a.Again != 0 {
		if !a.meet(t) {
			return
		}
	} else if a.Faults.over(t) {
		return
	}
	if !a.reaches(t) {
		return
	}
	if channel, role := a.role(t); role == 0 {
		a.sendAll(t, channel)
	} else {
		a.forward(t, channel)
		a.tally(t, channel, role, uint64(a.Payload+a.InfoBytes))
	}
	if t.Block() != 0 || t.Warp() != 0 {
		return
	}
	if t.Lane() == 0 {
		a.State.Raw().Sent = t.Clock()
	}
	op := a.op()
	// That all of this rank's channels have arrived says that no warp looks at the operation's number any more.
	if a.awaitAll(t, a.arrived(0), 0, a.DC.Ranks, op*uint64(a.Channels)) && t.Lane() == 0 {
		a.State.Raw().Done, a.State.Raw().Dispatches = t.Clock(), op
	}
}

// meet tells each rank that this one is done with the rows of the operation before, and waits for all, where the layout is known
// and nothing else is told. All threads of a block call it.
func (a *HT) meet(t gpu.Thread) bool {
	op, first := a.op(), t.Block() == 0 && t.Index() == 0
	if a.Faults.overBlock(t) {
		return false
	}
	if first {
		a.State.Raw().Begin = t.Clock()
	}
	if t.Block() == 0 && t.Warp() == 0 {
		a.signalNode(t, a.told(a.DC.Rank), 1)
		c := gin.Open(&a.DC, 0)
		for rank := range a.DC.Ranks {
			if a.here(rank) || a.Missing.has(rank) {
				continue
			}
			s := c.Signal(gin.ByWarp(t), gin.World(&a.DC), rank, gin.StrongInc(a.told(a.DC.Rank)))
			a.Meter.note(t, false, 0, 0, 1)
			if s != gin.OK && t.Lane() == 0 {
				a.fail(s, FaultSend, rank, 0, 0)
			}
		}
	}
	if t.Warp() == 0 {
		for rank := t.Lane(); rank < a.DC.Ranks; rank += gpu.WarpSize {
			if !a.Missing.has(rank) {
				a.await(t, a.told(rank), op, rank)
			}
		}
	}
	if a.Faults.overBlock(t) {
		return false
	}
	if t.Block() == 0 && a.Meter.on() {
		a.takeRows(t)
	}
	if first {
		a.State.Raw().Known = t.Clock()
	}
	return true
}

// reaches says whether all ranks of this node have room for rows, and fails if not. A warp calls it, once: each look is a trip to memory.
func (a *HT) reaches(t gpu.Thread) bool {
	all, c := true, gin.Open(&a.DC, 0)
	for i := t.Lane(); i < a.Node; i += gpu.WarpSize {
		rank := a.near(i)
		if _, s := c.LSAArea(gin.LSARank(&a.DC, rank), a.Win, a.rowAt(0), uint64(a.MaxRows)*uint64(a.Payload)); s != gin.OK {
			a.fail(s, FaultSend, rank, 0, 0)
			all = false
		}
	}
	return gpu.All(t, all)
}

// htRow is what a rank gets of a token.
type htRow struct {
	payload gpu.Ptr[byte]
	experts gpu.Ptr[int32]   // [k]
	weights gpu.Ptr[float32] // [k], or nil
	rank    int32            // whose
	token   int32
}

// sendAll sends the tokens of a channel and, of one node, of those further by as many as there are warps: there nobody waits for
// room. It says once that all of them are sent, when other nodes have theirs too: from then on the operation may have ended.
func (a *HT) sendAll(t gpu.Thread, channel int32) {
	first, sent := channel, uint64(0)
	for ; channel < a.Channels; channel += t.Blocks() * t.Warps() {
		good := a.send(t, channel)
		a.tally(t, channel, 0, uint64(a.Payload+a.InfoBytes))
		if !good {
			return
		}
		sent++
	}
	a.drain(t, first, a.Msg)
	a.signalNode(t, a.arrived(a.DC.Rank), sent)
}

// send sends the tokens of a channel. Each channel begins with another rank, so that all ways are busy all the time.
func (a *HT) send(t gpu.Thread, channel int32) bool {
	token, end := a.channel(channel)
	past, tokens := a.pastCaches(), a.Plan.Raw().Tokens
	for ; token < end; token++ {
		places := a.Place.At(int(token) * int(a.DC.Ranks))
		if a.Again == 0 {
			for rank := t.Lane(); rank < a.DC.Ranks; rank += gpu.WarpSize {
				p, before := places.At(int(rank)), a.before(rank, token/partTokens, tokens).Load()+a.Base.At(int(rank)).Load()
				if p.Load() >= 0 {
					p.Store(p.Load() + before)
				}
			}
			t.SyncWarp()
		}
		r := a.rowOf(t, token)
		for i := range a.Node {
			rank := a.near((a.DC.Rank + channel + i) % a.Node)
			if row := places.At(int(rank)).Load(); row >= 0 {
				a.deliver(t, rank, row, &r, past)
			}
		}
		for i := int32(1); i < a.nodes(); i++ {
			node := (a.node() + i) % a.nodes()
			if first, end := a.experts(node*a.Node, a.Node); a.goes(token, first, end) && !a.sendTo(t, channel, node, places.At(int(node*a.Node)), &r) {
				return false
			}
		}
	}
	return true
}

// rowOf is a token as it is sent.
func (a *HT) rowOf(t gpu.Thread, token int32) htRow {
	r := htRow{payload: a.X.Byte(uint64(token) * a.row()), experts: a.Idx.At(int(token) * int(a.TopK)), rank: a.DC.Rank, token: token}
	if !a.Weights.IsNil() {
		r.weights = a.Weights.At(int(token) * int(a.TopK))
	}
	if a.Format != int32(BF16) {
		q := rowFormat{a.Format, a.Hidden, a.Values, a.Payload}
		to := a.Scratch.Byte(uint64(t.Block()*t.Warps()+t.Warp()) * uint64(a.Payload))
		t.SyncWarp()
		q.quantise(t, to, r.payload, 0, 1)
		t.SyncWarp()
		r.payload = to
	}
	return r
}

// deliver stores a row at a rank of this node, past caches or not.
func (a *HT) deliver(t gpu.Thread, rank, row int32, r *htRow, past bool) {
	p := gin.LSARank(&a.DC, rank)
	info := gin.LSAPointer(a.Win, p, a.infoAt(row))
	first, end := a.experts(rank, 1)
	if t.Lane() == 0 {
		gpu.Cast[HTInfo](info).Store(HTInfo{Rank: r.rank, Token: r.token})
	}
	experts := gpu.Cast[int32](info.Byte(htInfoBytes))
	weights := gpu.Cast[float32](experts.At(int(a.TopK)))
	for k := t.Lane(); k < a.TopK; k += gpu.WarpSize {
		e, w := r.experts.At(int(k)).Load(), float32(0)
		if e < first || e >= end {
			e = first - 1
		} else if !r.weights.IsNil() {
			w = r.weights.At(int(k)).Load()
		}
		experts.At(int(k)).Store(e - first)
		weights.At(int(k)).Store(w)
	}
	copyWarp(t, &a.DC, false, gin.LSAPointer(a.Win, p, a.rowAt(row)), r.payload, uint64(a.Payload), past)
}

// sendTo sends a row to another node, whose ranks it goes to at those places.
func (a *HT) sendTo(t gpu.Thread, channel, node int32, places gpu.Ptr[int32], r *htRow) bool {
	w := a.way(channel, node, a.Msg)
	if a.room(t, &w) == 0 {
		a.put(t, &w)
		if !a.awaitHead(t, &w, a.count(&w).Staged+1-uint64(a.Ring)) {
			return false
		}
	}
	m := a.next(&w)
	if t.Lane() == 0 {
		gpu.Cast[htHeader](m).Store(htHeader{Token: uint32(r.token), Op: uint32(a.op())})
	}
	to, experts, weights := a.parts(m)
	for i := t.Lane(); i < a.Node; i += gpu.WarpSize {
		to.At(int(i)).Store(places.At(int(i)).Load())
	}
	for k := t.Lane(); k < a.TopK; k += gpu.WarpSize {
		x := float32(0)
		if !r.weights.IsNil() {
			x = r.weights.At(int(k)).Load()
		}
		experts.At(int(k)).Store(r.experts.At(int(k)).Load())
		weights.At(int(k)).Store(x)
	}
	gpu.CopyWarp(t, m.Byte(uint64(a.Head)), r.payload, uint64(a.Payload))
	a.staged(t, &w)
	return true
}

// parts is what follows a message's header.
func (a *HT) parts(m gpu.Ptr[byte]) (places, experts gpu.Ptr[int32], weights gpu.Ptr[float32]) {
	places = gpu.Cast[int32](m.Byte(htHeaderBytes))
	experts = places.At(int(a.Node))
	return places, experts, gpu.Cast[float32](experts.At(int(a.TopK)))
}

// forward passes on what comes from other nodes over a channel, from whichever has sent something.
func (a *HT) forward(t gpu.Thread, channel int32) {
	for i := int32(1); i < a.nodes(); i++ {
		w := a.way(channel, (a.node()+i)%a.nodes(), a.Msg)
		n := a.routed(&w)
		a.expect(t, &w, n)
		if n == 0 {
			a.signalNode(t, a.arrived(a.peer(w.node)), 1)
		}
	}
	a.serve(t, channel, passesOn)
}

// passCome passes on what has come of a way, of so many messages that are to.
func (a *HT) passCome(t gpu.Thread, w *way, left uint64) (n uint64, good bool) {
	n = a.come(t, w)
	if n > left || n > uint64(a.Ring) {
		if t.Lane() == 0 {
			a.fail(gin.RemoteError, FaultMessages, a.peer(w.node), int64(n), int64(left))
		}
		return n, false
	}
	for range n {
		if !a.pass(t, w) {
			return n, false
		}
	}
	if n == left {
		a.free(t, w)
		a.signalNode(t, a.arrived(a.peer(w.node)), 1)
	}
	return n, true
}

// routed is how many messages of this layout come from a node over a channel; route is the rows that the one of which so
// many are left goes to, at each rank of this node.
func (a *HT) routed(w *way) int32 {
	return a.Routed.At(int(w.channel*a.nodes() + w.node)).Load()
}

func (a *HT) route(w *way, left uint64) gpu.Ptr[int32] {
	n := int(a.routed(w)) - int(left)
	return a.Routes.At((int(w.channel*a.nodes()+w.node)*int(a.ChannelRows) + n) * int(a.Node))
}

// pass passes the next message of a way on to the ranks of this node, and remembers to which rows.
func (a *HT) pass(t gpu.Thread, w *way) bool {
	m, route := a.message(w), a.route(w, a.count(w).Left)
	h := gpu.Cast[htHeader](m).Load()
	places, experts, weights := a.parts(m)
	good := h.Op == uint32(a.op()) && h.Token < uint32(a.MaxTokens)
	for i := range a.Node {
		p := places.At(int(i)).Load()
		good = good && p >= -1 && p < a.MaxRows
	}
	if !good {
		if t.Lane() == 0 {
			a.fail(gin.RemoteError, FaultHeader, a.peer(w.node), int64(a.count(w).Taken), 0)
		}
		return false
	}
	r := htRow{payload: m.Byte(uint64(a.Head)), experts: experts, weights: weights, rank: a.peer(w.node), token: int32(h.Token)}
	past := a.pastCaches()
	for i := range a.Node {
		row := places.At(int(i)).Load()
		if t.Lane() == 0 {
			route.At(int(i)).Store(row)
		}
		if row >= 0 {
			a.deliver(t, a.near(i), row, &r, past)
		}
	}
	a.taken(t, w)
	a.oneLess(t, w)
	return true
}
