package scope

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

type Args struct {
	DC   gin.DevComm
	Win  gin.Window
	Done gpu.Ptr[uint32]
}

var total gpu.Shared[uint32]

//gpu:kernel
func Good(t gpu.Thread, a Args) {
	gpu.AtomicAdd(gpu.PtrTo(total.Of(t)), 1, gpu.Relaxed, gpu.ScopeBlock)
	gpu.AtomicAdd(a.Done, 1, gpu.AcqRel, gpu.ScopeGPU)
	gpu.Store(gpu.Cast[uint64](a.Win.Base), 1, gpu.Release, gpu.ScopeSys)
	raise(gpu.PtrTo(total.Of(t)))
	word := uint32(0)
	gpu.Store(gpu.PtrTo(&word), 1, gpu.Relaxed, gpu.ScopeThread)
}

func raise(p gpu.Ptr[uint32]) { gpu.Store(p, 1, gpu.Release, gpu.ScopeBlock) }

//gpu:kernel
func Narrow(t gpu.Thread, a Args) {
	gpu.AtomicAdd(a.Done, 1, gpu.AcqRel, gpu.ScopeBlock)                  // want `scope of a block or less`
	gpu.Store(gpu.Cast[uint64](a.Win.Base), 1, gpu.Release, gpu.ScopeGPU) // want `that peers or the host reach \(Window.Base\): its scope must be gpu.ScopeSys`
	q := a.DC.Queue(0)
	gpu.Store(q.Slots.At(8), 1, gpu.Phased, gpu.ScopeGPU)                   // want `Queue.Slots`
	gpu.Load(gpu.PtrTo(&q.Index.Raw().Consumed), gpu.Acquire, gpu.ScopeGPU) // want `Queue.Index`
	gpu.Load(a.DC.Net, gpu.Acquire, gpu.ScopeBlock)                         // want `DevComm.Net`
	lower(a.Done)
}

func lower(p gpu.Ptr[uint32]) { gpu.Store(p, 0, gpu.Release, gpu.ScopeBlock) } // want `scope of a block or less`
