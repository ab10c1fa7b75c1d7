// SPDX-License-Identifier: Apache-2.0

package cudatest

import (
	_ "embed" // the double's source
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device/soft"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

//go:embed testdata/libcuda.c
var source string

const file = "libcuda.so.1" // as programs find the driver by

// library is the double, compiled once.
var library = sync.OnceValues(func() ([]byte, error) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "double")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	so := filepath.Join(dir, file)
	c := exec.Command(cc, "-O1", "-shared", "-fPIC", "-pthread", "-o", so, "-x", "c", "-")
	c.Stdin = strings.NewReader(source)
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(so)
})

// install writes the double into a folder of the test's.
func install(t testing.TB) (path string) {
	t.Helper()
	so, err := library()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no gcc, which the test double of the driver is made with")
	}
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), file)
	if err := os.WriteFile(path, so, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// New makes a driver of the test's own, at Path, with one GPU of 8 multiprocessors and 1 GiB. It runs these kernels. At the
// test's end it holds that nothing was left or done that never may be.
func New(t testing.TB, kernels ...Kernel) *Driver {
	t.Helper()
	return start(t, install(t), kernels)
}

// InPlace runs the test that calls it again, in a process that finds the double where programs look for the driver, and f there.
func InPlace(t *testing.T, f func(d *Driver), kernels ...Kernel) {
	t.Helper()
	const inPlace = "CUDATEST_IN_PLACE"
	if os.Getenv(inPlace) != "" {
		for _, c := range gpu.Codes() {
			c.Cubins = nil // the double reads PTX
		}
		f(start(t, file, kernels))
		return
	}
	dir := filepath.Dir(install(t))
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout="+patience.String())
	again.Env = append(os.Environ(), inPlace+"=1", "LD_LIBRARY_PATH="+dir)
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v:\n%s", err, out)
	}
}

// Unwatched skips a test whose ranks hand device memory to each other where the race detector watches: it sees no memory that
// is mapped.
func Unwatched(t *testing.T) {
	t.Helper()
	if testenv.Race {
		t.Skip("device memory of the double is mapped: the race detector does not see it, and reports what is handed over there")
	}
}

// patience is how long a test may take in a process of its own.
const patience = 2 * time.Minute

func start(t testing.TB, path string, kernels []Kernel) *Driver {
	t.Helper()
	d := &Driver{TB: t, Path: path, kernels: map[string]bind{}, dev: soft.New(soft.Options{}), stop: make(chan struct{})}
	for _, k := range kernels {
		for _, name := range k.names {
			d.kernels[name] = k.bind
		}
	}
	var err error
	if d.lib, err = ffi.Open(path); err != nil {
		t.Fatal(err)
	}
	d.Ask("double_reset")
	d.server.Go(d.serve)
	t.Cleanup(d.end)
	return d
}
