// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// stub takes the place of each program that run.sh starts: it notes its call, makes the file that it shall make, and fails if
// BREAKS is of its call.
const stub = `#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
for a; do
	[ "$before" = -o ] && cp "$0" "$a"
	before=$a
done
case "$0 $*" in *"$BREAKS"*) echo it fails; exit 1;; esac
`

// TestRunScript: a part that fails, or that does not compile, keeps no other from running, and is named at the end; where no time is
// left no part begins.
func TestRunScript(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash, which runs run.sh")
	}
	dir := t.TempDir()
	put := func(name, text string) {
		path := filepath.Join(dir, name)
		check(t, os.MkdirAll(filepath.Dir(path), 0o700))
		check(t, os.WriteFile(path, []byte(text), 0o700))
	}
	for _, name := range []string{"run.sh", "examples.sh", "libraries.sh"} {
		put(name, string(must(os.ReadFile(name))(t)))
	}
	put("include/testdata/calls.cu", "")
	put("cxx/empty", "")
	for _, name := range []string{"bin/nvidia-smi", "bin/nvcc", "bin/ptxas", "bin/cuobjdump", "examples/one", "cuda.test", "gintest.test", "moe.test", "gpu.test", "doorbell", "measure"} {
		put(name, stub)
	}
	run := func(breaks, budget string) (calls, last string, err error) {
		log := filepath.Join(t.TempDir(), "calls")
		c := exec.CommandContext(t.Context(), bash, filepath.Join(dir, "run.sh"), filepath.Join(dir, "out"))
		c.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "CALLS="+log, "BREAKS="+breaks, "BUDGET="+budget)
		out, err := c.CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return string(must(os.ReadFile(log))(t)), lines[len(lines)-1], err
	}
	calls, last, err := run("TestKilledProcesses", "300")
	if err == nil || last != "failed: killed" {
		t.Errorf("%v, and its last line is %q", err, last)
	}
	for _, want := range []string{"cuda.test -test.run ^TestGPU", "moe.test ", "HTGraph|", "rate --iters 2000 -n 2 --device cuda", "one \n", "nvcc -O3 -std=c++17 -arch=sm_ -ptx bench/gpu/gdaki.cu", "TestWQETwins", "alltoall timeout=10s", "calls timeout=10s net=staged+tcp", " -wqes ", " -moe ", " -rounds 2"} {
		if !strings.Contains(calls, want) {
			t.Errorf("no call of %q:\n%s", want, calls)
		}
	}
	calls, last, err = run("-ptx bench/gpu/ll.cu", "0")
	if err == nil || strings.Contains(calls, ".test") || !strings.HasPrefix(last, "failed: conformance ranks ") || !strings.Contains(last, " ll ") || !strings.HasSuffix(last, " figures") {
		t.Errorf("without time: %v, %q:\n%s", err, last, calls)
	}
}
