// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A rendezvous that is a file is looked at, not resolved; nothing is tried from the interfaces, and nothing is left behind.
func TestPlace(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "old"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, kind string
		local      bool
		want       Verdict
		found, how string
	}{
		{dir + "/meet", "nfs", false, OK, "/meet: its folder can be written to; nfs", ""},
		{dir + "/meet", "", false, OK, "can be written to", ""},
		{dir + "/meet", "tmpfs", true, Limited, "tmpfs, which is of this host alone", "all hosts share"},
		{dir + "/old", "nfs", false, OK, "something stands there, written 0s ago", ""},
		{dir + "/none/meet", "nfs", false, Missing, "no such file", "all hosts share"},
		{filepath.Dir(dir), "nfs", false, Missing, "is no regular file", "all hosts share"},
	} {
		m := server(t)
		m.Storage = func(string) (string, bool) { return c.kind, c.local }
		r := Run(context.Background(), m, Options{Rendezvous: "file:" + c.path})
		for _, x := range r.Checks {
			switch x.Name {
			case "rendezvous":
				if x.Verdict != c.want || !x.Needed || !strings.Contains(x.Found, c.found) || !strings.Contains(x.How, c.how) {
					t.Errorf("%s on %s: %+v, want %+v", c.path, c.kind, x, c)
				}
			case "interfaces":
				if x.Verdict != OK || strings.Contains(x.Found, "file:") || !strings.Contains(x.Found, "eth0 10.0.0.1, MTU 9000: usable") {
					t.Errorf("%+v", x)
				}
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	if kind, _ := storage("/none"); kind != "" {
		t.Errorf("a folder that is not there is of %q", kind)
	}
}
