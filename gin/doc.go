// SPDX-License-Identifier: Apache-2.0

// Package gin is the device side of GPU-initiated networking: what kernels call to put bytes into a peer's window, to
// raise its signals, and to wait.
//
//	c := gin.Open(&a.DC, 0)
//	c.Put(gin.ByBlock(t), gin.World(&a.DC), peer, a.Recv, off, a.Send, 0, n, gin.StrongInc(0))
//	if s := c.WaitSignal(gin.ByBlock(t), 0, 1, 64, gin.FromAny()); s != gin.OK { ... }
//
// # Order
//
// Operations are not ordered, with one exception: a strong signal. It becomes visible at the target only after
// every earlier put of the same context to the same peer is visible there. Nothing orders two contexts.
//
// # Waits
//
// Each wait has a deadline (DevComm.Timeout unless Context.SetTimeout says otherwise) and a source: whom it waits for.
// It ends with OK, or with the reason. Timeout and Invalid do not stick: the call may be repeated. PeerLost and
// RemoteError stick to the context and peer, Aborted and Revoked to all.
//
// # Ranks that work together
//
// A [Team] is a regular set of ranks. Barriers are by stores among LSA peers (Context.LSABarrier), by signals in any team
// (Context.Barrier) or both (Context.HybridBarrier), and say by their [Fence] what is visible after. [Multimem] stores to all
// LSA peers at once and reduces over them, emulated so far. [LLA2A] exchanges words that need neither fence nor signal.
//
// # Cooperation
//
// Each call names the threads that take part (thread, warp, block). All of them call it with the same arguments, one
// issues, all get the status. What they wrote before is covered by the put.
package gin
