// SPDX-License-Identifier: Apache-2.0

// Package tcp is the network of plain sockets, over IPv4 and IPv6, between hosts and within one.
//
// Each pair of ranks has one socket, between the first two of their addresses that reach each other; all contexts'
// operations to a peer go through it, in order. Sockets are raw descriptors that do not block, read and written by
// whoever drives progress.
//
// An operation is done when the peer has said that it took effect there (Powers.RemoteCompletion). Until then its source
// is kept, so that a socket that broke is made again and goes on where the peer says it was: nothing is lost, and a
// signal is added exactly once.
//
// A way that drops large packets without a word is found when a socket times out (Config.Timeout) whose peer then answers
// at once; the next one sends small segments, and a warning says so.
//
// # Limits
//
// A piece is 1 MiB at most; Core cuts larger puts. A frame is a header of 64 bytes and its payload. Small frames are
// received together and copied; of large ones the body is received straight into the window.
package tcp
