// SPDX-License-Identifier: Apache-2.0

//go:build !linux || (!amd64 && !arm64)

package ffi

import "fmt"

// Library is a shared library that was opened. There is none on this system.
type Library struct{}

// Open returns an error on this system.
func Open(name string) (*Library, error) {
	return nil, fmt.Errorf("open library %s: %w", name, ErrUnavailable)
}

// Symbol returns an error on this system.
func (l *Library) Symbol(name string) (uintptr, error) {
	return 0, fmt.Errorf("symbol %s: %w", name, ErrUnavailable)
}

// Do cannot be reached: without a library there is no function.
func (c *Call) Do() { panic("ffi: a call of a function that no library gave") }
