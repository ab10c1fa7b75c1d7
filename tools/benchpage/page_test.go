// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestPageIsCurrent(t *testing.T) {
	want, err := page(os.DirFS("../../bench/results"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../bench/README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("bench/README.md differs from bench/results: go run ./tools/benchpage")
	}
}

func TestPage(t *testing.T) {
	dir := fstest.MapFS{
		"spine.jsonl": {Data: []byte(`{"case":"a","what":"b","unit":"ns","ours":{"min":1,"median":2,"max":12345},"peer":"p","theirs":{"min":4,"median":5,"max":6},"ratio":{"min":0.1,"median":0.4,"max":1},"rounds":3,"command":"x","date":"2026-01-02","machine":"m"}` + "\n")},
		"peers.jsonl": {Data: []byte(`{"peer":"c","case":"line","bytes":8,"value":1.5,"unit":"ns","stat":"min","rounds":2}` + "\n" +
			`{"peer":"c","case":"line","bytes":8,"value":null,"unit":"ns","stat":"median","rounds":2}` + "\n")},
	}
	got, err := page(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 ns (1 - 12345)", "p: 5 ns (4 - 6)", "0.4x (0.1 - 1)", "| c line | 8 | did not end | 1.5 |"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("page has no %q:\n%s", want, got)
		}
	}
	dir["spine.jsonl"] = &fstest.MapFile{Data: []byte("{")}
	if _, err := page(dir); err == nil {
		t.Error("a torn line accepted")
	}
}
