// SPDX-License-Identifier: Apache-2.0

// Package ffi calls functions of C libraries that are opened at run time: without cgo, without headers, and without an
// error where a library is missing until somebody asks for it.
//
// The library loading is purego's, and so is the C runtime that a program without cgo needs. Calls are our own: an
// assembly stub over runtime.cgocall, 40 ns and no allocation for any number of arguments, where purego's convenience
// calls take 100 to 600 ns and up to nine allocations. runtime.cgocall is kept stable by the Go project for purego.
//
// It is a folder of its own, and not part of package sys, because whatever links it is dynamically linked: device code and
// programs that run on the CPU alone stay static.
//
// Integers and pointers can be passed, up to [MaxArgs] of them, and one of either comes back; no floats and no structs by
// value. Memory that C keeps an address of, or writes to, must be on the heap or foreign: see [Addr].
package ffi
