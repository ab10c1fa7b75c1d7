// SPDX-License-Identifier: Apache-2.0

// Package tcp is the network of plain sockets, over IPv4 and IPv6, between hosts and within one.
//
// Each pair of ranks has one socket or a few, its lanes. A (context, peer) stays on one lane, context modulo their number,
// and its operations go through that in order. Sockets are raw descriptors that do not block, read and written by whoever
// drives progress.
//
// An operation is done when the peer has said that it took effect there (Powers.RemoteCompletion). Until then its source
// is kept, so that a socket that broke is made again and goes on where the peer says it was: nothing is lost, and a
// signal is added exactly once.
//
// A way that drops large packets without a word is found when a socket times out (Config.Timeout) whose peer then answers
// at once; the next one of that lane sends small segments, and a warning says so.
//
// # Lanes
//
// The higher rank of a pair dials. It tries the peer's interfaces side by side, to the end of the mutual proof; when one
// has answered, the others have twice as long as that took, and 200 ms at least. Then it chooses (chooseLanes): the
// fastest is lane 0, of equal ones that with the largest packets, then the first that the peer names. Another is added if
// it shares no interface with a lane, at either end, and is neither slower than half of lane 0 nor takes smaller packets.
// There are at most Config.Lanes, of both ranks the smaller number; within a host there is one. One line in the log says
// what was chosen, and what of the rest is why not. Speeds are those that Linux knows; many virtual interfaces have none.
//
// The number of lanes to a peer does not change any more. A lane that broke is made again by its own address or, with a
// head start of 300 ms for that, by any other of the peer: so it survives its interface, and then stays where it is. An
// interface that is silent is known to be gone when sockets time out, after Config.Timeout.
//
// # Limits
//
// A piece is 1 MiB at most; Core cuts larger puts. A frame is a header of 64 bytes and its payload. Small frames are
// received together and copied; of large ones the body is received straight into the window. A lane takes 360 KiB of
// memory. Two interfaces of one network share a lane where the system sends all of it by one of them (see policy routing,
// ip-rule(8)).
package tcp
