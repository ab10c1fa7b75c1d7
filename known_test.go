// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestKnownFailures looks that each test that docs/known-failures.md names is there, and that each row of its tables
// names one or says why not.
func TestKnownFailures(t *testing.T) {
	text, err := os.ReadFile("docs/known-failures.md")
	if err != nil {
		t.Fatal(err)
	}
	kit, err := os.ReadFile("netplugin/plugintest/plugintest.go")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`([a-z0-9./]+): ((?:Test|Fuzz|Benchmark)[A-Za-z0-9]+)(?:/([a-z0-9 -]+))?`")
	sources := map[string]string{}
	for _, m := range name.FindAllStringSubmatch(string(text), -1) {
		folder, test, sub := m[1], m[2], m[3]
		if _, ok := sources[folder]; !ok {
			files, _ := filepath.Glob(filepath.Join(folder, "*_test.go"))
			var all strings.Builder
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				all.Write(b)
			}
			sources[folder] = all.String()
		}
		if !strings.Contains(sources[folder], "\nfunc "+test+"(") {
			t.Errorf("%s is not there", m[0])
		}
		if test == "TestPrograms" && sub != "" && !slices.ContainsFunc(programs, func(p program) bool { return p.name == sub }) {
			t.Errorf("%s: there is no such program", m[0])
		}
		if test == "TestConformance" && sub != "" && !strings.Contains(string(kit), `{"`+sub+`", check`) {
			t.Errorf("%s: the kit has no such check", m[0])
		}
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 4 || strings.Contains(line, "---") || strings.HasPrefix(line, "| Report") || strings.HasPrefix(line, "| Input") || strings.HasPrefix(line, "| Line") {
			continue
		}
		rows++
		if here := cells[len(cells)-2]; !name.MatchString(here) && len(strings.Fields(here)) < 4 {
			t.Errorf("a row names no test and gives no reason: %s", line)
		}
	}
	if rows < 100 {
		t.Errorf("%d rows were found", rows)
	}
}
