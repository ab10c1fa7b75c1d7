// SPDX-License-Identifier: Apache-2.0

// Package cxx_test builds the C++ examples as they are built for a GPU, but by a compiler for the CPU, and runs their kernels
// against the software device.
package cxx_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/doorbell-net/doorbell" // so that a change there runs this test again
)

const limit = 60 * time.Second // of a program

var examples = []struct {
	name         string
	ranks        int
	says         string
	right, wrong string // a change of the source by which what is sent is wrong
}{
	{"pingpong", 2, "1000 messages received, all right", "0, i * i + 1, 8", "0, i * i + 1 + i / 1999, 8"},
	{"alltoall", 4, "8000 bytes from each rank, 10 times, all right", "a.send, p * bytes, bytes", "a.send, 0, bytes"},
}

// shared is where the library is, built once.
var shared struct {
	sync.Once
	dir string
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(shared.dir) // "" where nothing was built
	os.Exit(code)
}

// command runs a command that makes something.
func command(args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", args, err, out)
	}
	return nil
}

// build makes a program of the text of an example, and the library.
func build(t *testing.T, name, text string) (program string) {
	t.Helper()
	for _, tool := range []string{"gcc", "g++"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not on the PATH", tool)
		}
	}
	shared.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "cxx"); shared.err == nil {
			shared.err = command("go", "build", "-buildmode=c-shared", "-o", filepath.Join(shared.dir, "libdoorbell.so"), "../../plugins/libdoorbell")
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	program = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(program+".cc", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := command("g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-I", "../../include", "-I", ".", program+".cc", "-o", program,
		filepath.Join(shared.dir, "libdoorbell.so"), "-lpthread"); err != nil {
		t.Fatal(err)
	}
	return program
}

func source(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func run(program, options string, env ...string) (string, error) {
	cmd := exec.Command(program, options)
	cmd.Env = append(os.Environ(), env...)
	stop := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestExamples runs each with its ranks in one process, and with a process for each over shared memory and TCP.
func TestExamples(t *testing.T) {
	for _, x := range examples {
		t.Run(x.name, func(t *testing.T) {
			program := build(t, x.name, source(t, x.name+".cu"))
			check := func(r int, out string, err error) {
				if want := fmt.Sprintf("rank %d of %d, soft over ", r, x.ranks); err != nil || !strings.Contains(out, want) || !strings.Contains(out, x.says) {
					t.Errorf("rank %d: %v, printed %q, want %q and %q in it", r, err, out, want, x.says)
				}
			}
			out, err := run(program, "timeout=30s")
			for r := range x.ranks {
				check(r, out, err)
			}
			for _, net := range []string{"shm", "tcp"} {
				meet := filepath.Join(t.TempDir(), "meet")
				var ranks sync.WaitGroup
				for r := range x.ranks {
					ranks.Go(func() {
						out, err := run(program, "timeout=30s net="+net, fmt.Sprintf("DOORBELL_RANK=%d", r), fmt.Sprintf("DOORBELL_WORLD_SIZE=%d", x.ranks),
							"DOORBELL_ADDR=unix:"+meet, "DOORBELL_JOB=cxx", "DOORBELL_TOKEN=a secret")
						check(r, out, err)
					})
				}
				ranks.Wait()
			}
		})
	}
}

// TestWrongBytesAreSeen: an example whose kernel sends something else says so, and ends with an error.
func TestWrongBytesAreSeen(t *testing.T) {
	for _, x := range examples {
		t.Run(x.name, func(t *testing.T) {
			text := source(t, x.name+".cu")
			if n := strings.Count(text, x.right); n != 1 {
				t.Fatalf("%q stands %d times, want once", x.right, n)
			}
			out, err := run(build(t, x.name, strings.Replace(text, x.right, x.wrong, 1)), "timeout=10s")
			if err == nil || !strings.Contains(out, " wrong at ") {
				t.Errorf("%v, printed %q: want an error that says what is wrong", err, out)
			}
		})
	}
}

// TestDeviceCalls tries each call of gin.cuh among ranks, over networks of each kind. A wait for a rank that leaves ends,
// and the cause says so.
func TestDeviceCalls(t *testing.T) {
	program := build(t, "calls", source(t, "../../include/testdata/calls.cu"))
	for _, net := range []string{"net=shm", "net=tcp", "net=fault+shm faults=seed=7,reorder=50,delay=20"} {
		t.Run(net, func(t *testing.T) {
			out, err := run(program, "timeout=20s "+net)
			for _, want := range []string{"rank 0 of 2", "rank 1 of 2", "rank 0 of 4, two nodes", "rank 3 of 4, two nodes", ": all calls right", "PeerLost: wait for signal (rank 1, context 0), id 0: wanted 1000"} {
				if err != nil || !strings.Contains(out, want) {
					t.Errorf("%v, printed %q, want %q in it", err, out, want)
				}
			}
		})
	}
	if out, err := run(program, "timeout=20s backend=gdaki"); err == nil || !strings.Contains(out, "kernels in C++ drive no NIC") {
		t.Errorf("over a NIC: %v, printed %q", err, out)
	}
}
