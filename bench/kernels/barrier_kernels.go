// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// BarriersArgs of BarriersKernel.
type BarriersArgs struct {
	DC     gin.DevComm
	Iters  uint64
	Result gpu.Ptr[Result]
}

// barriersWarm are the barriers before the clock starts: in the first one the ranks wait for who was launched last.
const barriersWarm = 32

// Barriers is Iters LSA barriers of id 0, one after the other, by one warp, after some that are not timed.
//
//gpu:kernel warps=1
func Barriers(t gpu.Thread, a BarriersArgs) {
	r := a.Result.Raw()
	c := gin.Open(&a.DC, 0)
	start := uint64(0)
	for i := range barriersWarm + a.Iters {
		if i == barriersWarm {
			start = t.Clock()
		}
		if s := c.LSABarrier(gin.ByWarp(t), 0); s != gin.OK {
			if t.Lane() == 0 {
				r.Status, r.At = s, i
			}
			return
		}
	}
	if t.Lane() == 0 {
		r.Ns, r.Count, r.Done = t.Clock()-start, a.Iters, 1
	}
}
