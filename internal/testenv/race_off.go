// SPDX-License-Identifier: Apache-2.0

//go:build !race

package testenv

// Race is whether the race detector watches: it takes several times as long, sees no memory that processes map together, and misses
// what other instructions touch.
const Race = false
