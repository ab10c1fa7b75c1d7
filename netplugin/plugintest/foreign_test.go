// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestForeignModule: a plugin in a module of another path is tested as this package says, passes, and is caught when it is
// broken.
func TestForeignModule(t *testing.T) {
	for _, c := range []struct{ name, right, wrong, says string }{
		{name: "right"},
		{"no failure rule", "e.dead[l] = true\n", "\n", "--- FAIL: TestConformance/withdraw"},
		{"signal lost", "if op.Raise {\n\t\tgpu", "if op.Raise && op.SigAdd != 5 {\n\t\tgpu", "--- FAIL: TestConformance/signal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := stranger(t, c.right, c.wrong)
			passed := len(regexp.MustCompile(`(?m)^    --- PASS: Test(Conformance|Faults)/`).FindAllString(out, -1))
			if c.says == "" && (err != nil || passed != 2*len(checks)) {
				t.Errorf("%v, %d checks passed (want %d)\n%s", err, passed, 2*len(checks), out)
			}
			if c.says != "" && (err == nil || !strings.Contains(out, c.says)) {
				t.Errorf("%v (want an error, and %q)\n%s", err, c.says, out)
			}
		})
	}
}

// stranger runs the tests of testdata/mailbox in a module of its own, in which right was replaced by wrong.
func stranger(t *testing.T, right, wrong string) (out string, err error) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for to, from := range map[string]string{"mailbox.go": "testdata/mailbox/mailbox.go", "mailbox_test.go": "testdata/mailbox/mailbox_test.go", "go.sum": "../../go.sum"} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if to == "mailbox.go" && right != "" {
			if bytes.Count(text, []byte(right)) != 1 {
				t.Fatalf("%q must stand once in %s", right, from)
			}
			text = bytes.Replace(text, []byte(right), []byte(wrong), 1)
		}
		write(to, text)
	}
	write("go.mod", []byte("module example.com/stranger/mailbox\n\ngo 1.26.0\n\n"+
		"require github.com/doorbell-net/doorbell v0.0.0\n\nreplace github.com/doorbell-net/doorbell => "+root+"\n"))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-v", ".")
	// Nothing is downloaded: what the library needs was there to build this test.
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off", "GOTOOLCHAIN=local")
	b, err := cmd.CombinedOutput()
	return string(b), err
}
