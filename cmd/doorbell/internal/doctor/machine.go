// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/netif"
	"github.com/doorbell-net/doorbell/internal/sys"
)

// Machine is what is looked at. Tests give one of their own.
type Machine struct {
	OS, Arch string
	Env      env.Lookup
	Bound    time.Duration // of each look at the network

	Proc, Sys, Dev string // roots of these file systems

	CPUs         func() ([]int, error)
	MemAvailable func() (bytes uint64, ok bool)
	Shared       func() error // makes, seals and maps shared memory
	Futex        func() error // sleeps and wakes
	Membarrier   func() error
	Interfaces   func() ([]netif.Interface, error)
	Try          func(ctx context.Context, all []netif.Interface, target string, bound time.Duration) []netif.Attempt
	Lookup       func(ctx context.Context, network, host string) ([]netip.Addr, error)
	GPUs         func() (found []string, unfit []error, err error)
	Storage      func(dir string) (kind string, local bool) // local: certainly of this host alone; kind may be empty
}

// This is the machine that the process runs on.
func This() Machine {
	return Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Proc: "/proc", Sys: "/sys", Dev: "/dev", Env: os.LookupEnv, Bound: 2 * time.Second,
		CPUs: cpus, MemAvailable: sys.MemAvailable, Shared: tryShared, Futex: tryFutex, Membarrier: tryMembarrier,
		Interfaces: netif.List, Try: netif.Try, Lookup: net.DefaultResolver.LookupNetIP, GPUs: gpus, Storage: storage,
	}
}

// gpus opens none of them.
func gpus() (found []string, unfit []error, err error) {
	all, unfit, err := cuda.Look("")
	for _, c := range all {
		found = append(found, strings.TrimSpace(c.String()))
	}
	return found, unfit, err
}

// cpus falls back on the number alone where affinity is not known.
func cpus() ([]int, error) {
	if runtime.GOOS == "linux" {
		return sys.CPUs()
	}
	return make([]int, runtime.NumCPU()), nil
}

func tryShared() error {
	const bytes = 1 << 16
	fd, mem, err := sys.NewShared("doorbell-doctor", bytes)
	if err != nil {
		return err
	}
	mem[bytes-1] = 7
	again, err := sys.MapShared(fd, bytes) // refuses what is not sealed against shrinking
	if err == nil {
		if again[bytes-1] != 7 {
			err = errors.New("map shared memory: a second mapping does not show what the first has stored")
		}
		err = errors.Join(err, sys.Unmap(again))
	}
	return errors.Join(err, sys.Unmap(mem), sys.CloseFD(fd))
}

// tryFutex sleeps until another goroutine wakes it. Where futexes are refused the sleep returns at once, over and over.
func tryFutex() error {
	const bound = 2 * time.Second
	var word atomic.Uint32
	done := make(chan int, 1)
	go func() {
		returns := 0
		for end := time.Now().Add(bound); word.Load() == 0 && time.Now().Before(end); returns++ {
			sleepOn(&word, 100*time.Millisecond)
		}
		done <- returns
	}()
	pause := time.NewTimer(5 * time.Millisecond)
	<-pause.C
	word.Store(1)
	wake(&word)
	// Asleep it returns once, awake thousands of times; few interruptions by signals are no fault.
	if n := <-done; n > 100 {
		return fmt.Errorf("a futex sleep returned %d times in 5 ms instead of sleeping", n)
	}
	return nil
}

// read is a small file of the kernel's, without spaces around it; empty if it can't be read.
func (m *Machine) read(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil || len(b) > 1<<20 {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// quota is the number of processors that the control groups above this process grant; 0: not limited.
func (m *Machine) quota() (least float64) {
	for line := range strings.Lines(m.read(m.Proc, "self", "cgroup")) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for p := filepath.Clean("/" + path); ; p = filepath.Dir(p) {
			if q := parseQuota(m.read(m.Sys, "fs", "cgroup", p, "cpu.max")); q > 0 && (least == 0 || q < least) {
				least = q
			}
			if p == "/" {
				break
			}
		}
	}
	return least
}

// parseQuota reads cpu.max: "max 100000", or microseconds of each period; 0 means no limit, or no such text.
func parseQuota(s string) float64 {
	f := strings.Fields(s)
	if len(f) != 2 {
		return 0
	}
	q, err1 := strconv.ParseUint(f[0], 10, 63)
	period, err2 := strconv.ParseUint(f[1], 10, 63)
	if err1 != nil || err2 != nil || period == 0 {
		return 0
	}
	return float64(q) / float64(period)
}

const unlimited = ^uint64(0)

// parseMemlock finds the soft limit of locked memory, in bytes, in /proc/self/limits.
func parseMemlock(s string) (bytes uint64, ok bool) {
	for line := range strings.Lines(s) {
		rest, found := strings.CutPrefix(line, "Max locked memory")
		f := strings.Fields(rest)
		if !found || len(f) < 2 {
			continue
		}
		if f[0] == "unlimited" {
			return unlimited, true
		}
		n, err := strconv.ParseUint(f[0], 10, 64)
		return n, err == nil
	}
	return 0, false
}

// parseKernel reads the first two numbers of a kernel's release.
func parseKernel(release string) (major, minor int, ok bool) {
	a, rest, _ := strings.Cut(release, ".")
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(rest[:end])
	return major, minor, err1 == nil && err2 == nil && major >= 0
}
