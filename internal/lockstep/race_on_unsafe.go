// SPDX-License-Identifier: Apache-2.0

//go:build race

// Unsafe: the race detector takes addresses. Only that, of fields that live as long as their Warp.

package lockstep

import (
	"runtime"
	"unsafe"
)

// hide and show are around what orders nothing among the lanes on a GPU, though it does here.
func hide() { runtime.RaceDisable() }
func show() { runtime.RaceEnable() }

// release and acquire say what is ordered.
func release(at *byte) { runtime.RaceReleaseMerge(unsafe.Pointer(at)) }
func acquire(at *byte) { runtime.RaceAcquire(unsafe.Pointer(at)) }
