// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package sys

import (
	"errors"
	"runtime"
	"time"
)

var errLinuxOnly = errors.New("sys: shared memory between processes is there on linux only")

// FutexWait waits up to a millisecond of d; there is no futex here.
func FutexWait(addr *uint32, val uint32, d time.Duration) { time.Sleep(min(d, time.Millisecond)) }

// FutexWake does nothing: sleepers end by time.
func FutexWake(addr *uint32, n uint32) {}

// Membarrier does nothing here.
func Membarrier() {}

// Yield lets another goroutine run.
func Yield() { runtime.Gosched() }

// NewShared is not available on this system.
func NewShared(name string, bytes int) (int, []byte, error) { return -1, nil, errLinuxOnly }

// MapShared is not available on this system.
func MapShared(fd, bytes int) ([]byte, error) { return nil, errLinuxOnly }

// IsShared is never so on this system.
func IsShared(fd int) bool { return false }

// Unmap is not available on this system.
func Unmap(b []byte) error { return errLinuxOnly }

// CloseFD is not available on this system.
func CloseFD(fd int) error { return errLinuxOnly }

// CPUs is not known on this system.
func CPUs() ([]int, error) { return nil, errLinuxOnly }

// Bind is not available on this system.
func Bind(cpus ...int) error { return errLinuxOnly }

// MemAvailable is not known on this system: ok is false.
func MemAvailable() (bytes uint64, ok bool) { return 0, false }

// RetrySoon does nothing on this system.
func RetrySoon(int) {}

// Netlink is not available on this system.
func Netlink([]byte) ([]byte, error) { return nil, errors.New("netlink is there on linux only") }
