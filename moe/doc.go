// SPDX-License-Identifier: Apache-2.0

// Package moe is dispatch and combine for mixtures of experts, over put and signal.
//
// Each rank has tokens, and for each of them up to 32 experts that it goes to, which live on all ranks. Dispatch brings
// each token to its experts' ranks; what the experts made of it is brought back by Combine, which adds it up with the
// token's weights.
//
// There are two forms. In the low-latency one (LL, Buffer) each selection of a token is one message into a slot of its own,
// so that nobody waits for an answer before it sends; a signal per (expert, source) says how many came.
//
// The high-throughput form (HT, HTBuffer) is for thousands of tokens. The ranks first tell each other how many rows go
// where, so that each row has its place before any is sent; a token then goes once to each rank that has experts of it,
// between nodes once to each node, and is combined unweighted, in two levels. Channels cut the tokens into parts that move
// side by side; between nodes each has rings of messages, of any size from two.
//
// Payloads are BF16 or, to the experts, FP8 (Format). Ranks of one node store into each other's windows, the others are put
// to.
//
// Experts need not divide by ranks: the first Experts % Ranks ranks have one more. A selection of -1 is none. The same
// expert twice in a token's selections is two selections: two copies in LL, one row in HT, and both weights count.
//
// An operation of LL may be cut in two, a part that sends and one that receives, with no kernel running between them. With
// at most d operations between their two parts (Options.Outstanding), nothing is cleared between operations: slots and
// signals come in 2d sets, used in turn, and signals only grow. That is safe since a rank that has received an operation
// knows that each peer has received the one d before. Rows and outputs of d dispatches are kept.
//
// Calls on the stream of a doorbell.Graph record the operations: each replay is one more of them, with what stands in the
// tokens' memory then, their number too (Tokens.Count). What changes from one to the next is in the device's memory, and
// each recorded kernel finds it there; rows and outputs stay where they were when it was recorded. To its peers a rank that
// replays is as one that calls. A graph finishes what it starts, and its replays come when nothing else is started and not
// finished, on the stream that the other calls use: else they are refused. The host sees no replay's input and no single
// replay: the kernels report what is wrong with either, Wait or Check says it with the dispatch's number, and a graph of
// other operations than the peers' ends in a deadline or is told by the messages' headers.
//
// When a rank is lost, operations on each of the others that it takes part in end with an *Error that names it, soon after the
// loss is known and at the latest by the deadline; so do those that a rank is too late for. The buffer is of no use then
// until all that are left have called Recover: they go on without the lost ranks and their experts, in HT as nodes of one
// rank each. A rank that lives and is of no use, or is known to be gone before anybody has noticed, is left out in the same way:
// doorbell.Comm.Expel makes it a loss. A rank that leaves is as one that is lost, so one that is done waits for the others (doorbell.Comm.Barrier)
// before it closes.
//
//gpu:cubin sm_90
package moe
