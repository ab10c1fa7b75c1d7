// SPDX-License-Identifier: Apache-2.0

// Package bootstrap brings the ranks of a job together on the host side: rendezvous, all-gather of small blobs and file
// descriptors, and notice of ranks that are lost or have left.
//
// There are two forms with one behaviour. [Local] makes ranks of this process. [Join] makes one rank and meets the
// others over one stream socket per pair of ranks, Unix or TCP. It is a control plane: it may allocate, lock and block
// (each wait has a deadline); nothing of it lies on a put's way.
//
// How it is made: group is one rank's view of the job and knows nothing of sockets; a transport (localNet, mesh) carries
// contributions between groups. Frames (frame.go) and the handshake (handshake.go) work on any byte stream; descriptors
// need a Unix socket (rights.go). Ranks of several hosts meet at rank 0 and get a table of where each listens
// (meeting.go, card.go), then link up (reach.go). Who is lost is agreed on by a state machine without clock or I/O
// (member.go, ballot.go), which a detector drives (detector.go).
package bootstrap
