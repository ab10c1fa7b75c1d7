// SPDX-License-Identifier: Apache-2.0

// Package doorbell is GPU-initiated networking: kernels post their own one-sided puts and signals, with no CPU call
// between the computation and the network.
//
// A communicator ([Comm]) is one rank of a job. It registers memory as windows ([Window]), makes device communicators
// ([DevComm]) and launches kernels on streams ([Stream]). Kernels are Go functions; package gpu has the words they are
// written in, package gin what they call to reach their peers. With no GPU they run as goroutines.
//
//	cs, err := doorbell.Local(2)                            // two ranks in this process
//	c, err := doorbell.Open(ctx, doorbell.Options{})        // or: one rank of a job, under "doorbell run"
//	buf, err := c.Alloc(1 << 20)
//	w, err := c.Register(ctx, buf)                          // collective
//	dc, err := c.DevComm(ctx, doorbell.Needs{Signals: 1})   // collective
//	st := c.Stream()
//	err = doorbell.Launch(st, Kernel, doorbell.Grid{Blocks: 1, Warps: 1}, Args{DC: dc.Device(), Buf: w.Device()})
//	err = st.Wait(ctx)
//
// Collective calls are made by each rank, in the same order. Each call that blocks ends by its context, and where that
// has no deadline by Options.Timeout. Methods are safe for concurrent use.
package doorbell
