// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package ffi

import (
	"fmt"
	"runtime"

	"github.com/ebitengine/purego"
)

// Library is a shared library that was opened.
type Library struct {
	name   string
	handle uintptr
}

// Open opens a shared library by its name, as the dynamic linker searches for it, or by its path. It stays open: libraries
// like the drivers' start threads of their own and cannot be unloaded.
func Open(name string) (*Library, error) {
	runtime.LockOSThread() // the linker keeps its error for each thread
	defer runtime.UnlockOSThread()
	h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("open library %s: %w", name, err)
	}
	return &Library{name, h}, nil
}

// Symbol is the address of a function of the library.
func (l *Library) Symbol(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return 0, fmt.Errorf("library %s: %w", l.name, err)
	}
	return p, nil
}
