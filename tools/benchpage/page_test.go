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
	dir["gpu.jsonl"] = &fstest.MapFile{Data: []byte(`{"case":"g","what":"w","unit":"us","ours":{"min":1,"median":2,"max":3},"peer":"twin","theirs":{"min":1,"median":2,"max":3},"ratio":{"min":1,"median":1.5,"max":2},"target":"at most 1.1x","rounds":3,"command":"x","machine":"a GPU"}` + "\n")}
	if got, err = page(dir); err != nil || !strings.Contains(string(got), "| **g**: w | 2, 1 us | twin: 2, 1 us | 1.5x (1 - 2) | at most 1.1x | **missed** | 3 |") {
		t.Errorf("no GPU's row, %v:\n%s", err, got)
	}
	dir["gpu-peers.jsonl"] = dir["gpu.jsonl"]
	if got, err = page(dir); err != nil || strings.Count(string(got), "| **g**: w |") != 2 || !strings.Contains(string(got), "## Two GPUs over NVLink, ") {
		t.Errorf("no rows of two GPUs, %v:\n%s", err, got)
	}
	dir["spine.jsonl"] = &fstest.MapFile{Data: []byte("{")}
	if _, err := page(dir); err == nil {
		t.Error("a torn line accepted")
	}
}

func TestVerdict(t *testing.T) {
	ratio := func(v float64) *stat { return &stat{v, v, v} }
	for _, c := range []struct {
		r    row
		want string
	}{
		{row{Target: "at most 1.2x", Ratio: ratio(1.2)}, "met"},
		{row{Target: "at most 1.2x", Ratio: ratio(1.21)}, "**missed**"},
		{row{Target: "at least 0.97x", Ratio: ratio(0.98)}, "met"},
		{row{Target: "at least 0.97x", Ratio: ratio(0.9)}, "**missed**"},
		{row{Target: "at most 1 s", Ours: stat{1, 2, 3}}, "**missed**"},
		{row{Target: "at most 1 s", Ours: stat{0.1, 0.2, 3}}, "met"},
		{row{Target: "at most 1.2x"}, ""},
		{row{Target: "ahead", Ratio: ratio(2)}, ""},
		{row{}, ""},
	} {
		if got := verdict(c.r); got != c.want {
			t.Errorf("target %q of %v, ratio %v: %q, want %q", c.r.Target, c.r.Ours, c.r.Ratio, got, c.want)
		}
	}
}
