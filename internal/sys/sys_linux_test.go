// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSharedIsShared(t *testing.T) {
	fd, a, err := NewShared("t", 4097)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseFD(fd)
	defer Unmap(a)
	b, err := MapShared(fd, 4097)
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(b)
	a[4096] = 7
	if b[4096] != 7 {
		t.Fatal("the second mapping does not see the first one's store")
	}
}

func TestSharedRefuses(t *testing.T) {
	if _, _, err := NewShared("t", 0); err == nil {
		t.Error("zero bytes accepted")
	}
	fd, a, err := NewShared("t", 100)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseFD(fd)
	defer Unmap(a)
	if _, err := MapShared(fd, 101); err == nil {
		t.Error("a mapping longer than the memory accepted")
	}
	if err := unix.Ftruncate(fd, 10); err == nil {
		t.Error("shared memory could be shrunk under its users")
	}
	loose, err := unix.MemfdCreate("loose", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(loose)
	if err := unix.Ftruncate(loose, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := MapShared(loose, 100); err == nil {
		t.Error("memory that its owner may shrink accepted")
	}
}

func TestFutex(t *testing.T) {
	var word uint32
	start := time.Now()
	FutexWait(&word, 1, time.Minute) // differs: returns at once
	FutexWait(&word, 0, time.Millisecond)
	if time.Since(start) > 30*time.Second {
		t.Fatal("a wait outlived its limit")
	}
	done := make(chan struct{})
	go func() {
		for atomic.LoadUint32(&word) == 0 {
			FutexWait(&word, 0, time.Minute)
		}
		close(done)
	}()
	atomic.StoreUint32(&word, 1)
	for {
		FutexWake(&word, 1)
		select {
		case <-done:
			return
		default:
			Yield()
		}
	}
}

func TestBind(t *testing.T) {
	before, err := CPUs()
	if err != nil || len(before) == 0 {
		t.Fatal(before, err)
	}
	defer Bind(before...)
	last := before[len(before)-1]
	if err := Bind(last); err != nil {
		t.Fatal(err)
	}
	if now, err := CPUs(); err != nil || len(now) != 1 || now[0] != last {
		t.Errorf("bound to %d, may use %v (%v)", last, now, err)
	}
	if err := Bind(); err == nil {
		t.Error("bound to no processor at all")
	}
}

func TestMemAvailableTakesTheTightestLimit(t *testing.T) {
	proc, cg := t.TempDir(), t.TempDir()
	write := func(file, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := memAvailable(proc, cg); ok {
		t.Error("memory known from nothing")
	}
	write(filepath.Join(proc, "meminfo"), "MemTotal: 100 kB\nMemAvailable:   50 kB\n")
	if got, ok := memAvailable(proc, cg); !ok || got != 50<<10 {
		t.Errorf("meminfo: got %d %v, want %d", got, ok, 50<<10)
	}
	write(filepath.Join(proc, "self", "cgroup"), "0::/job/step\n")
	write(filepath.Join(cg, "job", "step", "memory.max"), "max\n")
	write(filepath.Join(cg, "job", "step", "memory.current"), "5\n")
	write(filepath.Join(cg, "job", "memory.max"), "1000\n")
	write(filepath.Join(cg, "job", "memory.current"), "400\n")
	if got, ok := memAvailable(proc, cg); !ok || got != 600 {
		t.Errorf("parent's limit: got %d %v, want 600", got, ok)
	}
}
