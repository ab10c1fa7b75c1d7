// SPDX-License-Identifier: Apache-2.0

// Package staged carries windows in device memory over networks that see the host's memory alone: "staged+tcp". What is put
// goes through pinned memory at both ends, by the copy engines of both devices.
//
// # How
//
// Each rank has two rings in pinned memory for each peer, which the peer fills through the network that is wrapped: one of
// requests (puts, signals, gets), one of answers (what was got, refusals). A record is a header and its payload. The sender has
// a mirror of each ring: a payload is copied there by its device, and when it is there the record goes, with all that are
// ready behind it, as one put, whose signal is the ring's bell: how many bytes were ever sent. The receiver's poll reads the bell,
// checks each header as one that an enemy wrote, and has its device copy the payload to where it belongs. When it is there, the
// CPU raises the signal, and the record's bytes are given back by the sender's credit word: only then is a put done.
//
// # Order
//
// Records of a pair of ranks are taken in order, of whatever context, and their copies are moves of one dma.Queue: a signal is
// raised when all that was put before it is there, and a get reads after the puts before it. Nothing but the wrapped
// network's order of one context is needed for that. One lane of the wrapped network carries the requests of a pair.
//
// # Bounds
//
// A pair takes 4 MiB of pinned memory at each end. A ring that is full has Post say "again". Answers are taken whether there is
// room for requests or not, so that two ranks that get from each other never wait for each other. What lies in the ring of a peer
// that has ended, ends with Lose, or as soon as the wrapped network notices that (netplugin.Noticer).
package staged
