// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/tools/house"
)

const root = "../.."

func TestUpToDate(t *testing.T) {
	// Reading the sources tells the go command that this test's result depends on them: `go list` reads them unseen.
	if _, err := house.Load(os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	want, err := render(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "THIRD_PARTY.md"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("THIRD_PARTY.md is out of date: run `go run ./tools/thirdparty` at the module root\nit should read:\n%s", want)
	}
}

func TestRecognise(t *testing.T) {
	apache, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	bsd := "Redistribution and use in source\nand binary forms, with or without"
	for _, c := range []struct{ text, want string }{
		{string(apache), "Apache-2.0"},
		{bsd, "BSD-2-Clause"},
		{bsd + " ... to endorse or\n promote products", "BSD-3-Clause"},
		{"Permission is hereby granted, free of charge, to any person ... without restriction", "MIT"},
		{"All rights reserved.", ""},
	} {
		if got := recognise(c.text); got != c.want {
			t.Errorf("%.40q is %q (want %q)", c.text, got, c.want)
		}
	}
}

func TestLicenceOf(t *testing.T) {
	write := func(files ...string) string {
		dir := t.TempDir()
		for i := 0; i < len(files); i += 2 {
			if err := os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	mit := "Permission is hereby granted, free of charge, without restriction"
	dir := write("LICENSE.md", mit, "LICENSE-SIL", "SIL OPEN FONT LICENSE Version 1.1", "LICENSE-THIRD-PARTY", "?", "LICENSES.md", "?")
	if got, err := licenceOf(dir); err != nil || got != "OFL-1.1 AND MIT" {
		t.Errorf("got %q, %v (want OFL-1.1 AND MIT)", got, err)
	}
	if _, err := licenceOf(write("LICENSE", "ask me")); err == nil || !strings.Contains(err.Error(), "LICENSE") {
		t.Errorf("an unknown text: error %v (want one that names the file)", err)
	}
	if _, err := licenceOf(write("README", mit)); err == nil {
		t.Error("no licence file: no error")
	}
}
