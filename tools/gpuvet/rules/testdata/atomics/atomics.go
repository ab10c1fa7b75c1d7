package atomics

import (
	"sync/atomic"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

type Args struct {
	DC gin.DevComm
}

//gpu:kernel
func Device(t gpu.Thread, a Args) {
	q := a.DC.Queue(0)
	gpu.AtomicAdd(gpu.PtrTo(&q.Prod.Raw().Ticket), 1, gpu.Relaxed, gpu.ScopeGPU)
	gpu.AtomicAdd(q.Slots, 1, gpu.Relaxed, gpu.ScopeSys)           // want `gpu.AtomicAdd on memory of the host \(Queue.Slots\)`
	gpu.AtomicCAS(a.DC.Net.At(3), 1, 2, gpu.Relaxed, gpu.ScopeSys) // want `on memory of the host \(DevComm.Net\)`
}

func host(dc *gin.DevComm) {
	gpu.AtomicAdd(dc.Net, 1, gpu.Relaxed, gpu.ScopeSys)
	gpu.AtomicMax(dc.LSA.At(1), 1, gpu.Relaxed, gpu.ScopeSys) // want `an atomic of the host on memory of the device \(DevComm.LSA\)`
	atomic.AddUint64(&dc.Prod.Raw().Ticket, 1)                // want `an atomic of the host on memory of the device \(DevComm.Prod\)`
}
