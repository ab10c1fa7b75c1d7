// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0 // FUTEX_WAIT, shared between processes
	futexWake = 1 // FUTEX_WAKE
)

// FutexWait sleeps while *addr == val, for d at most, and returns early when woken, interrupted or when the word
// differs. It never reports why: callers look at their own condition again.
//
// It goes through a system call that tells the Go scheduler. A raw one would keep the garbage collector waiting for
// as long as it sleeps.
func FutexWait(addr *uint32, val uint32, d time.Duration) {
	if d <= 0 {
		return
	}
	ts := unix.NsecToTimespec(int64(d))
	futex(addr, futexWait, val, &ts)
}

// FutexWake wakes at most n sleepers on addr, in any process that shares the page.
func FutexWake(addr *uint32, n uint32) { futex(addr, futexWake, n, nil) }

// Membarrier makes each other thread of this process pass a full memory fence before it returns (membarrier(2), private
// and expedited). It does nothing where the kernel lacks it.
func Membarrier() {
	membarrierOnce.Do(func() { unix.Syscall(unix.SYS_MEMBARRIER, membarrierRegister, 0, 0) })
	unix.Syscall(unix.SYS_MEMBARRIER, membarrierPrivate, 0, 0)
}

var membarrierOnce sync.Once

const (
	membarrierPrivate  = 1 << 3 // MEMBARRIER_CMD_PRIVATE_EXPEDITED, linux/membarrier.h
	membarrierRegister = 1 << 4 // MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED
)

// Yield gives the processor to another thread that is ready to run (sched_yield). It is for goroutines that wait for
// another process; one that waits for another goroutine calls runtime.Gosched.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
