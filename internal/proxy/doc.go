// SPDX-License-Identifier: Apache-2.0

// Package proxy is the Proxy backend: it drains the descriptor queues that kernels fill, drives a network plugin, and
// tells the kernels how far it is.
//
// An Owner is one rank's progress: a try-lock, taken or skipped, never waited for. Its holder never blocks or yields,
// and a pass ends after 64 operations or about 50 us. An Engine drives the owners of a process: by a dedicated thread,
// by waiting device threads, by host calls that wait, and by a timer as a backstop.
//
// The protocol was checked by exhaustive search before it was written: see the package model.
package proxy
