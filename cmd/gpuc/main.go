// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/doorbell-net/doorbell/compiler"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command is gpuc: 0 when all was written, 1 when something cannot be compiled, 2 for wrong usage, 3 without LLVM.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("gpuc", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var opt compiler.Options
	fs.StringVar(&opt.Arch, "arch", compiler.DefaultArch, "oldest `GPU` that the PTX is for")
	fs.BoolVar(&opt.Checks, "checks", false, "end a kernel that breaks a bound, and say where")
	fs.BoolVar(&opt.Debug, "g", false, "lines of the source, for profilers and debuggers")
	out := fs.String("o", "", "write the PTX of the one package to this `file`, and nothing else")
	verbose := fs.Bool("v", false, "print each kernel's arguments, instructions and local memory")
	fs.Usage = func() {
		fmt.Fprintf(stderr, "usage: gpuc [flags] PACKAGE...\n\nCompiles the kernels of each package to PTX, and writes %s and %s beside its source.\n\n", compiler.PTXFile, compiler.GoFile)
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return 2
	}
	_ = out
	_ = filepath.Join
	pkgs, err := compiler.Compile(ctx, ".", fs.Args(), opt)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	for _, p := range pkgs {
		for name, text := range p.Files() {
			if *out != "" {
				name = *out
				text = []byte(p.PTX)
			}
			if err := os.WriteFile(name, text, 0o644); err != nil {
				fmt.Fprintln(stderr, err)
				return 1
			}
		}
		if *verbose {
			for _, k := range p.Kernels {
				fmt.Fprintln(stdout, p.Path, k)
			}
		}
	}
	return 0
}
