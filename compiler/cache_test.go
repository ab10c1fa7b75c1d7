// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOnce: what was made is made again only for other parts, after an error, where what is kept was spoiled, or where nothing
// can be kept.
func TestOnce(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	times := 0
	ask := func(want int, parts ...string) {
		t.Helper()
		times = 0
		for range 2 {
			got, err := once(func() ([]byte, error) { times++; return []byte("made of " + strings.Join(parts, "+")), nil }, parts...)
			if err != nil || string(got) != "made of "+strings.Join(parts, "+") {
				t.Errorf("%q: %q, %v", parts, got, err)
			}
		}
		if times != want {
			t.Errorf("%q: asked for twice and made %d times (want %d)", parts, times, want)
		}
	}
	failed := errors.New("failed")
	if _, err := once(func() ([]byte, error) { return nil, failed }, "a", "bc"); !errors.Is(err, failed) {
		t.Errorf("%v (want %v)", err, failed)
	}
	ask(1, "a", "bc")
	ask(1, "ab", "c")
	ask(1, "abc")
	ask(0, "a", "bc")

	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "-d") {
			err = os.WriteFile(path, []byte("spoiled"), 0o600)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ask(1, "a", "bc")

	t.Setenv("XDG_CACHE_HOME", filepath.Join(os.DevNull, "none"))
	ask(2, "a", "bc")
}

// TestMissingImport: what the go command has not found is said once, with its place and its reason.
func TestMissingImport(t *testing.T) {
	t.Parallel()
	dir := foreign(t, map[string]string{
		"k/k.go":           "package k\n\nimport (\n\t_ \"example.com/elsewhere/empty\"\n\t_ \"example.com/missing\"\n\t\"" + modulePath + "/gpu\"\n)\n\n//gpu:kernel\nfunc K(t gpu.Thread, a struct{ N int32 }) {}\n",
		"empty/no_test.go": "package empty\n",
	})
	_, err := lower(t.Context(), dir, []string{"./k"}, Options{Arch: DefaultArch})
	for i, want := range []string{"k/k.go:4:4: could not import example.com/elsewhere/empty (it has no Go files)", "k/k.go:5:4: could not import example.com/missing (cannot find module"} {
		if err == nil || !strings.Contains(strings.Split(err.Error(), "\n")[i], want) {
			t.Errorf("%v (want %s)", err, want)
		}
	}
}
