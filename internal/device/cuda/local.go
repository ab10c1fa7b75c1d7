// SPDX-License-Identifier: Apache-2.0

package cuda

import "github.com/doorbell-net/doorbell/gpu"

// limitStack is CU_LIMIT_STACK_SIZE: the bytes of local memory that a context holds for each thread that may be resident.
const limitStack = 0

// holdLocal has the context hold as much local memory as any of the kernels takes. Otherwise the first launch of one that
// takes more raises the limit, and the GPU waits for what runs before it does: for kernels that may wait for this one. A
// launch never lowers it again (both: CUDA driver API, cuCtxSetLimit). gate is held for writing, and nothing runs.
func (c *card) holdLocal(kernels map[*gpu.Code]*kernel) {
	most := 0
	for _, k := range kernels {
		most = max(most, k.local)
	}
	if most <= c.local {
		return
	}
	out := new(outs)
	r, f := c.do(cuCtxGetLimit, out.at(0), limitStack), cuCtxGetLimit
	if r == success && out.bytes(0) < uint64(most) {
		r, f = c.do(cuCtxSetLimit, limitStack, uintptr(most)), cuCtxSetLimit
	}
	if r != success {
		c.log.Warn("local memory is not held: a kernel's first launch may wait for kernels that run", "gpu", c.index, "bytes", most, "error",
			c.fault(f, r, "%s a thread asked for", size(uint64(most))))
		return
	}
	c.local = most
}
