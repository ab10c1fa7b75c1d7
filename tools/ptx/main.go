// SPDX-License-Identifier: Apache-2.0

// Command ptx compiles the kernels of all packages of this module, as "go generate" does one by one.
//
//	go run ./tools/ptx          writes what gpuc writes, beside the sources
//	go run ./tools/ptx -check   writes nothing: it fails with what differs from what is committed
//
// Both assemble all kernels for each architecture that cubins are made for, and fail with those that have spills or other
// local memory. A check without ptxas says that it leaves that out, and the cubins too.
//
// Exit: 0 all as it should be, 1 not so, 3 no LLVM or ptxas of the right version.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/doorbell-net/doorbell/compiler"
)

func main() {
	check := flag.Bool("check", false, "compare with what is committed, and write nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := regenerate(ctx, ".", *check, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, compiler.ErrNoLLVM) || errors.Is(err, compiler.ErrNoPtxas) {
			os.Exit(3)
		}
		os.Exit(1)
	}
}

// regenerate compiles the module at root, and writes or compares.
func regenerate(ctx context.Context, root string, check bool, out io.Writer) error {
	pkgs, err := compiler.Compile(ctx, root, []string{"./..."}, compiler.Options{})
	if err != nil {
		return err
	}
	var slow, bad []string
	a, err := compiler.FindAssembler(ctx)
	switch {
	case err == nil:
		slow, err = assemble(ctx, a, pkgs, out)
	case check:
		fmt.Fprintf(out, "left out, cubins and spills: %v\n", err)
		err = nil
	}
	if err != nil {
		return err
	}
	want, asked := map[string][]byte{}, map[string]bool{}
	for _, p := range pkgs {
		maps.Copy(want, p.Files())
		for _, arch := range p.Archs {
			asked[filepath.Join(p.Dir, compiler.CubinFile(arch))] = true // also where it could not be made
		}
		fmt.Fprintf(out, "%s: %d kernels\n", p.Path, len(p.Kernels))
	}
	for name := range want {
		asked[name] = true
	}
	left, err := leftovers(root, asked)
	if err != nil {
		return err
	}
	if len(slow) > 0 {
		err = fmt.Errorf("kernels with local memory:\n%s", strings.Join(slow, "\n"))
	}
	if !check {
		return errors.Join(write(want, left), err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if d := differs(name, want[name]); d != "" {
			bad = append(bad, d)
		}
	}
	for _, name := range left {
		bad = append(bad, name+" is there, and its package has no kernels, or does not ask for it")
	}
	if len(bad) > 0 {
		err = errors.Join(err, fmt.Errorf("not what the sources compile to; run `go run ./tools/ptx` and commit:\n%s", strings.Join(bad, "\n")))
	}
	return err
}

func write(want map[string][]byte, left []string) error {
	for name, text := range want {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// leftovers is generated files that no package asks for any more.
func leftovers(root string, asked map[string]bool) ([]string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	var left []string
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case compiler.IsGenerated(d.Name()) && !asked[p]:
			left = append(left, p)
		}
		return nil
	})
	return left, err
}

// differs says how a file is not text: its first line that differs, "" when there is none.
func differs(name string, text []byte) string {
	have, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	if bytes.Equal(have, text) {
		return ""
	}
	if !utf8.Valid(text) {
		return fmt.Sprintf("%s: %d bytes that are others than the %d wanted", name, len(have), len(text))
	}
	a, b := strings.Split(string(have), "\n"), strings.Split(string(text), "\n")
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	line := func(s []string) string {
		if i < len(s) {
			return s[i]
		}
		return "(the end)"
	}
	return fmt.Sprintf("%s:%d:\n\t-%s\n\t+%s\n\tof %d lines, %d are wanted", name, i+1, line(a), line(b), len(a), len(b))
}
