// SPDX-License-Identifier: Apache-2.0

// Command libdoorbell is the host's side of doorbell for C, as a shared library (go build -buildmode=c-shared). Its contract
// is include/doorbell.h; example.py calls it from Python.
//
// What it hands to C are numbers for communicators, buffers, windows and device communicators (table), and the structures that
// kernels get by value. Those hold addresses, on the software device of memory that Go made: what they point at is pinned
// until it is closed.
package main

import _ "github.com/doorbell-net/doorbell/netplugin/fault" // for who tests a program with it

// main is not called: the library's entries are the exported functions.
func main() {}
