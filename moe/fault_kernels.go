// SPDX-License-Identifier: Apache-2.0

package moe

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// Faults is where kernels say what went wrong: what is wrong with this rank's input, and what ended its operations. Of
// each the first is kept, so that the one does not hide the other.
type Faults struct {
	Failed  gpu.Ptr[uint32] // not 0 once the operations' result is lost
	Told    gpu.Ptr[uint32] // [2] not 0 when somebody fills that result: decided in the device's memory
	Results gpu.Ptr[Result] // [2] in the host's
}

// Result is what went wrong first.
type Result struct {
	Filled uint32 // not 0: it is
	Status gin.Status
	What   uint32 // Fault*
	Rank   int32
	A, B   int64
	Op     uint64 // number of the dispatch
	_      [24]byte
}

// What went wrong.
const (
	FaultSend      = 1 // status of a put or signal to Rank; A is the expert
	FaultWait      = 2 // status of a wait for Rank's messages; A is the expert
	FaultAnswer    = 3 // status of a wait for Rank's answer; A is the expert
	FaultSelection = 4 // selection A of the own tokens is B: no expert
	FaultCopies    = 5 // A selections name expert B: more than fit
	FaultTokens    = 6 // Tokens.Count says A, more than B
	FaultCount     = 7 // Rank sent A rows for expert B: more than it can
	FaultHeader    = 8 // Rank's row A for expert B has a header that cannot be
	// Of the high-throughput form, where A and B of a header are the message and nothing, and no expert is waited for.
	FaultRows     = 9  // Rank would get A rows: more than the B that it has room for
	FaultLayout   = 10 // Rank told A of its layout, where B is the most
	FaultMessages = 11 // Rank has put A messages, where B are still to come
)

// refuse tells what is wrong with this rank's input. The operation goes on with the rest of it.
func (f *Faults) refuse(op uint64, what uint32, rank int32, x, y int64) {
	f.tell(0, Result{Status: gin.Invalid, What: what, Rank: rank, A: x, B: y, Op: op})
}

// fail tells why this rank's operations can't be right any more, and ends them as doorbell.Comm.Abort does: what other blocks
// wait for may never come, since nothing is sent that would tell a peer that all came before it.
func (f *Faults) fail(dc *gin.DevComm, op uint64, s gin.Status, what uint32, rank int32, x, y int64) {
	gpu.Store(f.Failed, 1, gpu.Relaxed, gpu.ScopeGPU)
	f.tell(1, Result{Status: s, What: what, Rank: rank, A: x, B: y, Op: op})
	gpu.Store(gpu.PtrTo(&dc.Control.Raw().Ended), uint32(gin.Aborted), gpu.Relaxed, gpu.ScopeSys)
}

func (f *Faults) tell(i int, r Result) {
	if gpu.AtomicCAS(f.Told.At(i), 0, 1, gpu.Relaxed, gpu.ScopeGPU) {
		f.Results.At(i).Store(r)
		gpu.Store(gpu.PtrTo(&f.Results.At(i).Raw().Filled), 1, gpu.Release, gpu.ScopeSys)
	}
}

func (f *Faults) failed() bool { return gpu.Load(f.Failed, gpu.Relaxed, gpu.ScopeGPU) != 0 }

// overBlock says whether operations have failed, the same to all threads of a block: it may happen while they look. What they
// did before is ordered before what they do after.
func (f *Faults) overBlock(t gpu.Thread) bool { return t.AnyOfBlock(f.failed()) }

// over says whether operations have failed, the same to all lanes of a warp: it may happen while they look.
func (f *Faults) over(t gpu.Thread) bool {
	n := uint32(0)
	if t.Lane() == 0 && f.failed() {
		n = 1
	}
	return gpu.ShflIdx(t, n, 0) != 0
}
