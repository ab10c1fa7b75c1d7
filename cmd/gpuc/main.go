// SPDX-License-Identifier: Apache-2.0

// Command gpuc compiles the kernels of Go packages to PTX:
//
//	gpuc [-arch sm_70] [-checks] [-g] [-o FILE] [-v] PACKAGE...
//
// A kernel is a function func(t gpu.Thread, a Args) with the comment //gpu:kernel above it. Beside the package's source
// it writes kernels_gpuc.ptx, the text that the driver compiles for the GPU it finds, and kernels_gpuc.go, with a value
// for each kernel that binds its Go function and its PTX. Both are committed: who uses the package needs no gpuc, and
// gpuc runs by "go generate". A module that uses this one has it as a tool ("go get -tool", then "go tool gpuc ."). It needs
// opt and llc of the one LLVM that it names.
//
// A comment //gpu:cubin sm_90 in a package asks for machine code beside the PTX, in kernels_gpuc.sm_90.cubin, which loads
// without being compiled; sm_80 and sm_100 are accepted too, and several. That needs ptxas of the version that gpuc names.
//
// What those programs made of a text is kept in doorbell/kernels of the user's cache folder until it has not been used for five
// days: a kernel that has not changed costs nothing the next time. GODEBUG=gocacheverify=1 makes all of it again and compares.
//
// Exit: 0 written, 1 not compiled (all that is wrong is on standard error), 2 wrong usage, 3 no LLVM or ptxas of that
// version.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"

	"github.com/doorbell-net/doorbell/compiler"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command is gpuc with its arguments.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("gpuc", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var opt compiler.Options
	fs.StringVar(&opt.Arch, "arch", compiler.DefaultArch, "oldest `GPU` that the PTX is for; it runs on all newer ones too")
	fs.BoolVar(&opt.Checks, "checks", false, "end a kernel that breaks a bound, and say where")
	fs.BoolVar(&opt.Debug, "g", false, "keep the lines of the source, for profilers and debuggers")
	out := fs.String("o", "", "write the PTX of the one package to this `file`, and nothing else")
	verbose := fs.Bool("v", false, "print the size of each kernel")
	fs.Usage = func() {
		fmt.Fprintf(stderr, "usage: gpuc [flags] PACKAGE...\n\nWrites %s and %s beside the source of each package with kernels.\n\n", compiler.PTXFile, compiler.GoFile)
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return 2
	}
	if fs.NArg() == 0 {
		fs.Usage()
		return 2
	}
	pkgs, err := compiler.Compile(ctx, ".", fs.Args(), opt)
	if err == nil && *out != "" && len(pkgs) != 1 {
		err = fmt.Errorf("gpuc: -o %s: %d packages have kernels, and 1 is accepted", *out, len(pkgs))
	}
	if err == nil && *out == "" {
		err = assemble(ctx, pkgs)
	}
	if err == nil {
		err = write(pkgs, *out)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		if errors.Is(err, compiler.ErrNoLLVM) || errors.Is(err, compiler.ErrNoPtxas) {
			return 3
		}
		return 1
	}
	if *verbose {
		report(stdout, pkgs)
	}
	return 0
}

// assemble makes the cubins that are asked for.
func assemble(ctx context.Context, pkgs []*compiler.Package) error {
	for _, p := range pkgs {
		if len(p.Archs) == 0 {
			continue
		}
		a, err := compiler.FindAssembler(ctx)
		if err != nil {
			return fmt.Errorf("gpuc: %s: %w", p.Path, err)
		}
		if err := a.AssembleAll(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// write writes what belongs beside each package, or the PTX of the one alone.
func write(pkgs []*compiler.Package, out string) error {
	for _, p := range pkgs {
		files := p.Files()
		if out != "" {
			files = map[string][]byte{out: []byte(p.PTX)}
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if err := os.WriteFile(name, files[name], 0o644); err != nil {
				return fmt.Errorf("gpuc: %w", err)
			}
		}
	}
	return nil
}

func report(w io.Writer, pkgs []*compiler.Package) {
	for _, p := range pkgs {
		fmt.Fprintln(w, p.Path)
		for _, k := range p.Kernels {
			fmt.Fprintf(w, "\t%s: %d bytes of arguments, at most %d warps a block, %d PTX instructions, %d bytes of local memory\n",
				k.Name, k.ArgBytes, k.MaxWarps, k.Instructions, k.LocalBytes)
		}
	}
}
