// SPDX-License-Identifier: Apache-2.0

// Package examples_test builds each example as a newcomer would who copied it: in a module of another path.
package examples_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/doorbell-net/doorbell" // so that a change there runs this test again, and what it needs is downloaded
)

// example is a folder, and what is to be seen of it.
type example struct {
	name         string
	lines        int // that each of its files has at most
	ranks        int // in one process
	says         func(rank int) string
	right, wrong string // a change of the source by which what is sent is wrong
}

var examples = []example{
	{"alltoall", 60, 4, each("262144 bytes received, all right"), "a.Win, uint64(p)*chunk, chunk", "a.Win, 0, chunk"},
	{"fused", 200, 4, each("3 forms of 2 layers, 442368 bytes compared, all right"), "a.send(t, c, k, tile, 1)", "a.send(t, c, k, 0, 1)"},
	{"kvhandoff", 120, 4, kvhandoffSays, "a.Win, at, block", "a.Win, 0, block"},
	{"moelayer", 140, 4, moelayerSays, "a.Rows.At(at)", "a.Rows.At(0)"},
	{"pingpong", 60, 2, each("1000 messages received, all right"), "i*i+1, 8", "i*i+1+i/1999, 8"},
}

// each is for examples whose ranks all say the same.
func each(says string) func(int) string { return func(int) string { return says } }

func kvhandoffSays(rank int) string {
	if rank >= 2 {
		return "8 blocks received, all right"
	}
	return fmt.Sprintf("8 blocks sent; block 8 of 32768 bytes does not fit rank %d's window of 262144: Invalid", rank+2)
}

func moelayerSays(rank int) string {
	tokens := 3*16 - 3*rank - 3
	return fmt.Sprintf("%d tokens in 3 steps, 2 of them replayed, %d elements compared, all right", tokens, tokens*64)
}

// ours is the path of the examples' packages in this module, theirs where a newcomer has copied them.
const (
	ours   = "github.com/doorbell-net/doorbell/examples/"
	theirs = "example.com/newcomer/"
)

// public is what an example may import besides the standard library.
var public = []string{"github.com/doorbell-net/doorbell", "github.com/doorbell-net/doorbell/gin", "github.com/doorbell-net/doorbell/gpu", "github.com/doorbell-net/doorbell/moe"}

// TestEachFolder: none is forgotten here, but for those of C++, which have a test of their own.
func TestEachFolder(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && e.Name() != "cxx" && !slices.ContainsFunc(examples, func(x example) bool { return x.name == e.Name() }) {
			t.Errorf("examples/%s is tried by no test", e.Name())
		}
	}
}

// TestSource: an example is short, and imports what another module can.
func TestSource(t *testing.T) {
	for _, x := range examples {
		for _, file := range sources(t, x) {
			text := read(t, file)
			if filepath.Ext(file) != ".go" {
				continue
			}
			if n := bytes.Count(text, []byte("\n")); n > x.lines {
				t.Errorf("%s has %d lines, %d are accepted", file, n, x.lines)
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, im := range f.Imports {
				path, err := strconv.Unquote(im.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				own := strings.HasPrefix(path, ours+x.name+"/")
				if strings.Contains(path, ".") && !own && !slices.Contains(public, path) {
					t.Errorf("%s imports %s (want the standard library, and of others %v)", file, path, public)
				}
			}
		}
	}
}

// TestOneProcess: it runs with no launcher, each rank says that all is right, and the status is 0. So too where the host has no
// view of the device's memory, as with a GPU.
func TestOneProcess(t *testing.T) {
	for _, x := range examples {
		t.Run(x.name, func(t *testing.T) {
			for _, far := range []string{"0", "1"} {
				status, stdout, stderr := run(t, "env", "DOORBELL_SOFT_FAR="+far, build(t, x, false))
				if status != 0 || stderr != "" {
					t.Errorf("far memory %s: status %d (want 0), on standard error:\n%s", far, status, stderr)
				}
				checkLines(t, x, x.ranks, stdout, "")
			}
		})
	}
}

// TestWrong: one that sends wrong bytes notices, and ends with status 1.
func TestWrong(t *testing.T) {
	for _, x := range examples {
		t.Run(x.name, func(t *testing.T) {
			status, stdout, stderr := run(t, build(t, x, true))
			if status != 1 || !strings.Contains(stderr, "wrong") {
				t.Errorf("status %d (want 1), standard error %q (want what is wrong), standard output:\n%s", status, stderr, stdout)
			}
		})
	}
}

// TestLaunched: "doorbell run" starts it as a process for each rank.
func TestLaunched(t *testing.T) {
	doorbell := filepath.Join(t.TempDir(), "doorbell")
	command(t, "..", []string{"CGO_ENABLED=0"}, "go", "build", "-o", doorbell, "./cmd/doorbell")
	for _, x := range examples {
		t.Run(x.name, func(t *testing.T) {
			for _, broken := range []bool{false, true} {
				program := build(t, x, broken)
				status, stdout, stderr := run(t, doorbell, "run", "-n", fmt.Sprint(x.ranks), "--", program)
				if broken {
					if status != 1 {
						t.Errorf("status %d of one that sends wrong bytes (want 1):\n%s%s", status, stdout, stderr)
					}
					continue
				}
				if status != 0 {
					t.Errorf("status %d (want 0), on standard error:\n%s", status, stderr)
				}
				checkLines(t, x, x.ranks, stdout, "[%d] ")
			}
		})
	}
}

// checkLines wants one line of each rank, in any order.
func checkLines(t *testing.T, x example, ranks int, stdout, prefix string) {
	t.Helper()
	var want []string
	for r := range ranks {
		line := fmt.Sprintf("rank %d of %d: %s", r, ranks, x.says(r))
		if prefix != "" {
			line = fmt.Sprintf(prefix, r) + line
		}
		want = append(want, line)
	}
	got := strings.Split(strings.TrimSpace(stdout), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("output %q (want %q)", got, want)
	}
}

// sources is what a newcomer copies of an example: all but its tests.
func sources(t *testing.T, x example) (files []string) {
	t.Helper()
	err := filepath.WalkDir(x.name, func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasSuffix(file, "_test.go") {
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// modules is where examples are built, each once for all tests.
var modules string

func TestMain(m *testing.M) {
	var err error
	if modules, err = os.MkdirTemp("", "examples"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(modules)
	os.Exit(code)
}

// build copies an example into a module of its own and builds it there; broken makes the change that sends wrong bytes.
func build(t *testing.T, x example, broken bool) string {
	t.Helper()
	dir := filepath.Join(modules, fmt.Sprintf("%s, broken %v", x.name, broken))
	program := filepath.Join(dir, "program")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range sources(t, x) {
		text := string(read(t, file))
		if filepath.Ext(file) == ".go" {
			text = strings.ReplaceAll(text, ours, theirs)
		}
		if broken {
			found += strings.Count(text, x.right)
			text = strings.ReplaceAll(text, x.right, x.wrong)
		}
		to := filepath.Join(dir, strings.TrimPrefix(file, x.name))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, to, text)
	}
	if broken && found != 1 {
		t.Fatalf("%q must stand once in examples/%s, not %d times", x.right, x.name, found)
	}
	write(t, filepath.Join(dir, "go.mod"), "module "+theirs+x.name+"\n\ngo 1.26.0\n\n"+
		"require github.com/doorbell-net/doorbell v0.0.0\n\nreplace github.com/doorbell-net/doorbell => "+root+"\n")
	write(t, filepath.Join(dir, "go.sum"), string(read(t, "../go.sum")))
	// Nothing is downloaded: what the library needs was there to build this test.
	env := []string{"CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off", "GOTOOLCHAIN=local"}
	command(t, dir, env, "go", "build", "-o", program, ".")
	return program
}

// command runs a command that must end well.
func command(t *testing.T, dir string, env []string, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s in %s: %v\n%s", cmd, dir, err, out)
	}
}

// run runs a program, as if no launcher had started this test, and returns its status and output.
func run(t *testing.T, name string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DOORBELL_") })
	cmd.Env = append(cmd.Env, "DOORBELL_TIMEOUT=20s")
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	failure := cmd.Run()
	var exit *exec.ExitError
	if failure != nil && !errors.As(failure, &exit) {
		t.Fatalf("%s: %v", cmd, failure)
	}
	if ctx.Err() != nil {
		t.Fatalf("%s: no end within a minute\n%s%s", cmd, out.String(), err.String())
	}
	return cmd.ProcessState.ExitCode(), out.String(), err.String()
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
