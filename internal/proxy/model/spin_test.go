// SPDX-License-Identifier: Apache-2.0

package model

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestSpin checks queue.pml, the second model. It runs with DOORBELL_LONG=1 where spin and a C compiler are.
func TestSpin(t *testing.T) {
	if !long() {
		t.Skip("runs with DOORBELL_LONG=1")
	}
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed: %v", tool, err)
		}
	}
	source, err := filepath.Abs("queue.pml")
	if err != nil {
		t.Fatal(err)
	}
	states := regexp.MustCompile(`(?m)^ *([0-9]+) states, stored`)
	elapsed := regexp.MustCompile(`elapsed time (\S+) seconds`)
	for _, c := range []struct{ defines, want string }{
		{"", "errors: 0"},
		{"-DD=2 -DSTART=12", "errors: 0"},
		{"-DNOSWEEP", "invalid end state"},
		{"-DFETCHADD", "invalid end state"},
		{"-DPLAINCOMPARE", "invalid end state"},
		{"-DWORD0", "assertion violated ((v0=="},
		{"-DEARLY", "assertion violated"},
		{"-DFLUSHLIES", "assertion violated src[i]"},
		{"-DSIGOWN", "assertion violated"},
		{"-DHOLD -DF=3 -DGIVEUP=0", "errors: 0"},
		{"-DHOLD -DF=3 -DGIVEUP=0 -DNOHOLD", "assertion violated ((placed[0]"},
		{"-DHOLD -DF=3 -DGIVEUP=0 -DHOLDLAST", "assertion violated ((placed[0]"},
		{"-DHOLD -DF=3 -DGIVEUP=0 -DHOLDTABLE", "invalid end state"},
		{"-DHOLD -DF=3 -DGIVEUP=0 -DLOCALONLY", "assertion violated ((placed[0]"},
	} {
		t.Run("queue"+c.defines, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			dir := t.TempDir()
			run := func(name string, args ...string) string {
				cmd := exec.CommandContext(ctx, name, args...)
				cmd.Dir, cmd.Env = dir, append(os.Environ(), "LC_ALL=C")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
				}
				return string(out)
			}
			run("spin", append(append([]string{"-a"}, strings.Fields(c.defines)...), source)...)
			run("gcc", "-w", "-O2", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c")
			out := run("./pan", "-m100000")
			if !strings.Contains(out, c.want) || strings.Contains(out, "max search depth too small") {
				t.Fatalf("expected %q in\n%s", c.want, out)
			}
			for _, re := range []*regexp.Regexp{states, elapsed} {
				if m := re.FindStringSubmatch(out); m != nil {
					t.Log(strings.TrimSpace(m[0]))
				}
			}
		})
	}
}
