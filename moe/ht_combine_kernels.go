// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// HTReady tells the ranks of this node that this one's outputs are there. One block.
//
//gpu:kernel
func HTReady(t gpu.Thread, a HT) {
	if t.Index() == 0 {
		a.State.Raw().Combines++
	}
	t.SyncBlock()
	if t.Warp() == 0 {
		a.signalNode(t, a.ready(a.DC.Rank), 1)
	}
}

// HTCombine adds up, for each token, what the ranks that it went to made of it, unweighted: the ranks of a node in order,
// in float32, rounded to BF16 where there are several nodes; then the nodes in order, in float32; then the biases; then to
// BF16. A rank reads the outputs of its node where they lie, and is sent the sums of other nodes by the ranks that passed
// its tokens on there. A warp of each channel gathers, in the order of the tokens; one adds up for other nodes, for
// whichever has room: it waits for no one node, so that a gatherer always gets what it waits for.
//
//gpu:kernel warps=8
//gpu:variant OneNode=1 warps=16
func HTCombine(t gpu.Thread, a HT) {
	if a.Faults.over(t) {
		return
	}
	op := a.State.Raw().Combines
	if !a.awaitAll(t, a.ready(0), a.near(0), a.near(a.Node), op) {
		return
	}
	channel, role := a.role(t)
	if role == 0 {
		a.gather(t, channel)
	} else {
		a.giveBack(t, channel)
	}
	bytes := a.row()
	if role > 0 || !a.YWeights.IsNil() {
		bytes += uint64(4 * a.TopK)
	}
	a.tally(t, channel, role, bytes)
	// Who writes outputs again knows by this that they were read.
	a.signalNode(t, a.read(a.DC.Rank), 1)
	if channel == 0 && role == 0 {
		a.awaitAll(t, a.read(0), a.near(0), a.near(a.Node), op*uint64(a.Channels*a.roles()))
	}
}

// giveBack sends to other nodes what this one made of the messages of a channel.
func (a *HT) giveBack(t gpu.Thread, channel int32) {
	for i := int32(1); i < a.nodes(); i++ {
		w := a.way(channel, (a.node()+i)%a.nodes(), a.Answer)
		a.expect(t, &w, a.routed(&w))
	}
	if a.serve(t, channel, givesBack) {
		a.drain(t, channel, a.Answer)
	}
}

// answerSome gives back over a way what there is room for, of so many answers that are left.
func (a *HT) answerSome(t gpu.Thread, w *way, left uint64) (n uint64) {
	n = min(a.room(t, w), left, uint64(a.Chunk))
	for range n {
		a.answer(t, w)
	}
	a.put(t, w)
	return n
}

// answer stages the sum of what this node made of a message.
func (a *HT) answer(t gpu.Thread, w *way) {
	rows, m := a.route(w, a.count(w).Left), a.next(w)
	out, outs := gpu.Cast[uint32](m), a.outputs(rows, 0)
	for at := t.Lane() * sumPairs; at < a.Hidden/2; at += sumPairs * gpu.WarpSize {
		var s sum
		n := min(a.Hidden/2-at, sumPairs)
		a.addNode(&s, rows, &outs, at, n)
		s.store(out.At(int(at)), n)
	}
	weights := gpu.Cast[float32](m.Byte(a.row()))
	for k := t.Lane(); k < a.TopK; k += gpu.WarpSize {
		weights.At(int(k)).Store(a.weightOfNode(rows, k))
	}
	a.staged(t, w)
	a.oneLess(t, w)
}

// gather makes the tokens of a channel of what their nodes have.
func (a *HT) gather(t gpu.Thread, channel int32) {
	token, end := a.channel(channel)
	for ; token < end; token++ {
		for node := range a.nodes() {
			if w := a.way(channel, node, a.Answer); a.comes(token, node) && !a.awaitTail(t, &w, a.count(&w).Taken+1) {
				return
			}
		}
		a.gatherRow(t, channel, token)
		if !a.YWeights.IsNil() {
			a.gatherWeights(t, channel, token)
		}
		for node := range a.nodes() {
			if w := a.way(channel, node, a.Answer); a.comes(token, node) {
				a.taken(t, &w)
			}
		}
	}
	for i := int32(1); i < a.nodes(); i++ {
		w := a.way(channel, (a.node()+i)%a.nodes(), a.Answer)
		a.free(t, &w)
	}
}

// comes says whether another node sends a sum for a token.
func (a *HT) comes(token, node int32) bool {
	if node == a.node() {
		return false
	}
	first, end := a.experts(node*a.Node, a.Node)
	return a.goes(token, first, end)
}

func (a *HT) gatherRow(t gpu.Thread, channel, token int32) {
	out := gpu.Cast[uint32](a.Y.Byte(uint64(token) * a.row()))
	here := a.Place.At(int(token)*int(a.DC.Ranks) + int(a.node()*a.Node))
	outs := a.outputs(here, 0)
	if gpu.WarpSize > 1 && a.nodes() == 1 && a.Node <= fewRanks {
		a.sumFew(t, out, token, &outs)
		return
	}
	for at := t.Lane() * sumPairs; at < a.Hidden/2; at += sumPairs * gpu.WarpSize {
		var s sum
		n := min(a.Hidden/2-at, sumPairs)
		for node := range a.nodes() {
			if node == a.node() {
				a.addHere(&s, here, &outs, at, n)
			} else if a.comes(token, node) {
				w := a.way(channel, node, a.Answer)
				s.add(gpu.Cast[uint32](a.message(&w)).At(int(at)), n, 1)
			}
		}
		a.addBias(&s, token, at, n)
		s.store(out.At(int(at)), n)
	}
}

// fewRanks is how many ranks a node has whose tokens are summed several columns at once: so that as many loads are on their way
// as where there are more ranks.
const fewRanks = 2

// sumFew is gatherRow of a GPU with one node of fewRanks at most.
func (a *HT) sumFew(t gpu.Thread, out gpu.Ptr[uint32], token int32, o *outputs) {
	const step, columns = sumPairs * gpu.WarpSize, answersAtOnce / fewRanks
	end := a.Hidden / 2
	for first := t.Lane() * sumPairs; first < end; first += step * columns {
		var v [answersAtOnce]gpu.U32x4
		//gpu:unroll 8
		for j := range int32(answersAtOnce) {
			if at := first + j/fewRanks*step; o.have>>uint(j%fewRanks)&1 != 0 && at < end {
				v[j] = gpu.Cast[gpu.U32x4](o.at[j%fewRanks].At(int(at))).Load()
			}
		}
		//gpu:unroll 4
		for c := range int32(columns) {
			at := first + c*step
			if at >= end {
				break
			}
			var s sum
			//gpu:unroll 2
			for j := range int32(fewRanks) {
				if o.have>>uint(j)&1 != 0 {
					s.addFour(v[c*fewRanks+j], 1)
				}
			}
			a.addBias(&s, token, at, sumPairs)
			s.store(out.At(int(at)), sumPairs)
		}
	}
}

// addBias adds n pairs of a token's biases.
func (a *HT) addBias(s *sum, token, at, n int32) {
	for _, b := range a.Bias {
		if !b.IsNil() {
			s.add(gpu.Cast[uint32](b.Byte(uint64(token)*a.row())).At(int(at)), n, 1)
		}
	}
}

// addHere adds this node's sum, rounded where it is one of several.
func (a *HT) addHere(s *sum, rows gpu.Ptr[int32], first *outputs, at, n int32) {
	if a.nodes() == 1 {
		a.addNode(s, rows, first, at, n)
		return
	}
	var here sum
	a.addNode(&here, rows, first, at, n)
	s.addRounded(&here)
}

// addNode adds the outputs of this node's ranks at those rows, of which the first ones have been looked up.
func (a *HT) addNode(s *sum, rows gpu.Ptr[int32], first *outputs, at, n int32) {
	first.add(s, at, n)
	for i := int32(answersAtOnce); i < a.Node; i += answersAtOnce {
		more := a.outputs(rows, i)
		more.add(s, at, n)
	}
}

// outputs is where outputs of answersAtOnce ranks of this node lie, and which of them there are.
type outputs struct {
	at   [answersAtOnce]gpu.Ptr[uint32]
	have uint32
}

// outputs are those at rows, -1 for none, of ranks from number first of this node on. What it looks up hangs on no condition, so
// that all of it is on its way at once.
func (a *HT) outputs(rows gpu.Ptr[int32], first int32) (o outputs) {
	//gpu:unroll 8
	for j := range int32(answersAtOnce) {
		i := min(first+j, a.Node-1)
		row := rows.At(int(i)).Load()
		o.at[j] = gpu.Cast[uint32](gin.LSAPointer(a.Win, gin.LSARank(&a.DC, a.near(i)), a.outAt(max(row, 0))))
		if i == first+j && row >= 0 {
			o.have |= 1 << uint(j)
		}
	}
	return o
}

// add adds n pairs of each, in order.
func (o *outputs) add(s *sum, at, n int32) {
	if gpu.WarpSize == 1 {
		for j, p := range o.at {
			if o.have>>uint(j)&1 != 0 {
				s.add(p.At(int(at)), n, 1)
			}
		}
		return
	}
	var v [answersAtOnce]gpu.U32x4
	//gpu:unroll 8
	for j := range v {
		if o.have>>uint(j)&1 != 0 {
			v[j] = gpu.Cast[gpu.U32x4](o.at[j].At(int(at))).Load()
		}
	}
	//gpu:unroll 8
	for j := range v {
		if o.have>>uint(j)&1 != 0 {
			s.addFour(v[j], 1)
		}
	}
}

func (a *HT) gatherWeights(t gpu.Thread, channel, token int32) {
	here := a.Place.At(int(token)*int(a.DC.Ranks) + int(a.node()*a.Node))
	for k := t.Lane(); k < a.TopK; k += gpu.WarpSize {
		x := float32(0)
		for node := range a.nodes() {
			if node == a.node() {
				x = gpu.Add(x, a.weightOfNode(here, k))
			} else if a.comes(token, node) {
				w := a.way(channel, node, a.Answer)
				x = gpu.Add(x, gpu.Cast[float32](a.message(&w).Byte(a.row())).At(int(k)).Load())
			}
		}
		a.YWeights.At(int(token)*int(a.TopK) + int(k)).Store(x)
	}
}

// weightOfNode is the sum of weight k over this node's ranks at those rows.
func (a *HT) weightOfNode(rows gpu.Ptr[int32], k int32) float32 {
	x := float32(0)
	for i := range a.Node {
		if row := rows.At(int(i)).Load(); row >= 0 {
			from := gin.LSAPointer(a.Win, gin.LSARank(&a.DC, a.near(i)), a.outWeightsAt(row))
			x = gpu.Add(x, gpu.Cast[float32](from).At(int(k)).Load())
		}
	}
	return x
}
