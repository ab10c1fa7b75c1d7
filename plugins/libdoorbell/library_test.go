// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const limit = 60 * time.Second // of a program

// need is the path of a tool, and skips where it is missing.
func need(t *testing.T, tool string) string {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		t.Skipf("%s is not on the PATH", tool)
	}
	return path
}

var (
	buildOnce sync.Once
	folder    string
	buildErr  error
)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(folder) // "" where nothing was built
	os.Exit(code)
}

// library builds the shared library once, and is its path.
func library(t *testing.T) string {
	t.Helper()
	need(t, "gcc")
	buildOnce.Do(func() {
		if folder, buildErr = os.MkdirTemp("", "libdoorbell"); buildErr != nil {
			return
		}
		cmd := exec.Command("go", "build", "-buildmode=c-shared", "-o", filepath.Join(folder, "libdoorbell.so"), ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	return filepath.Join(folder, "libdoorbell.so")
}

// run runs a program and returns what it printed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	stop := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s %v: %v\n%s", filepath.Base(name), args, err, out)
	}
	return string(out)
}

// TestFromC: two processes of C go through a rank's life, and what is wrong is refused in words.
func TestFromC(t *testing.T) {
	lib := library(t)
	program := filepath.Join(t.TempDir(), "host")
	run(t, need(t, "gcc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", "../../include", "testdata/host.c", "-o", program, lib, "-lpthread")
	if t.Failed() {
		return
	}
	for _, net := range []string{"shm", "tcp"} {
		t.Run(net, func(t *testing.T) {
			var ranks sync.WaitGroup
			meet := filepath.Join(t.TempDir(), "meet")
			for r := range 2 {
				ranks.Go(func() {
					options := fmt.Sprintf("rank=%d size=2 local_size=2 net=%s addr=unix:%s job=c timeout=20s", r, net, meet)
					if out, want := run(t, program, options), fmt.Sprintf("rank %d of 2 over %s: all right", r, net); !strings.Contains(out, want) {
						t.Errorf("rank %d printed %q, want %q", r, out, want)
					}
				})
			}
			ranks.Wait()
		})
	}
}

// TestFromPython: the example does the host's side by ctypes.
func TestFromPython(t *testing.T) {
	out := run(t, need(t, "python3"), "example.py", library(t))
	for _, want := range []string{
		"rank 0 of 2, soft over shm: from Python\n", "rank 1 of 2, soft over shm: from Python\n",
		"barrier: code 2: handle 12345: nothing, want a communicator",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("printed %q, want %q in it", out, want)
		}
	}
}

// TestHeaderHasWhatIsExported, and nothing else.
func TestHeaderHasWhatIsExported(t *testing.T) {
	lib := library(t)
	var exported []string
	for line := range strings.Lines(run(t, need(t, "nm"), "-D", "--defined-only", lib)) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == "T" && strings.HasPrefix(f[2], "doorbell_") {
			exported = append(exported, f[2])
		}
	}
	header, err := os.ReadFile("../../include/doorbell.h")
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for _, m := range regexp.MustCompile(`(?m)^(?:int |const char \*)(doorbell_\w+)\(`).FindAllStringSubmatch(string(header), -1) {
		declared = append(declared, m[1])
	}
	slices.Sort(declared)
	slices.Sort(exported)
	if !slices.Equal(declared, exported) {
		t.Errorf("the header declares %q\nthe library exports %q", declared, exported)
	}
}
