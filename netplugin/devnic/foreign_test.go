// SPDX-License-Identifier: Apache-2.0

package devnic_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestForeignNIC: a NIC of another module, testdata/loopback, needs no more than what is exported here, and kernels drive it.
func TestForeignNIC(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := map[string]string{"loopback.go": "testdata/loopback/loopback.go", "loopback_test.go": "testdata/loopback/loopback_test.go", "go.sum": "../../go.sum"}
	for to, from := range files {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	mod := "module example.com/stranger/loopback\n\ngo 1.26.0\n\nrequire github.com/doorbell-net/doorbell v0.0.0\n\nreplace github.com/doorbell-net/doorbell => " + root + "\n"
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-v", ".")
	// Nothing is downloaded: what the library needs was there to build this test.
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off", "GOTOOLCHAIN=local")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
