// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// llvmVersion is the one LLVM that is used: another's output differs, and what is committed could not be compared.
const llvmVersion = "19.1.7"

// ErrNoLLVM is what errors.Is finds in an error about a missing or another LLVM.
var ErrNoLLVM = errors.New("gpuc needs LLVM " + llvmVersion + " (opt-19, llc-19): apt-get install llvm-19")

// Available says whether the tools that Compile runs are there, with the reason when not.
func Available(ctx context.Context) error {
	_, err := findTools(ctx)
	return err
}

// tools is LLVM's programs.
type tools struct{ opt, llc tool }

// tool is a program, and all that it says of its version.
type tool struct{ path, version string }

func findTools(ctx context.Context) (tools, error) {
	opt, err := findTool(ctx, "opt-19", "/usr/lib/llvm-19/bin/opt")
	if err != nil {
		return tools{}, err
	}
	llc, err := findTool(ctx, "llc-19", "/usr/lib/llvm-19/bin/llc")
	return tools{opt, llc}, err
}

var versionLine = regexp.MustCompile(`LLVM version ([0-9]+\.[0-9]+\.[0-9]+)`)

// findTool looks for a program of the right version under its names.
func findTool(ctx context.Context, names ...string) (tool, error) {
	var path string
	for _, n := range names {
		if p, err := exec.LookPath(n); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		return tool{}, fmt.Errorf("%w; found no %s", ErrNoLLVM, names[0])
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return tool{}, fmt.Errorf("%w; %s --version: %w", ErrNoLLVM, path, err)
	}
	v := versionLine.FindSubmatch(out)
	if v == nil || string(v[1]) != llvmVersion {
		got := "no version that can be read"
		if v != nil {
			got = "version " + string(v[1])
		}
		return tool{}, fmt.Errorf("%w; found %s of %s", ErrNoLLVM, path, got)
	}
	return tool{path, string(out)}, nil
}

// finish makes PTX of a package's text, and checks it.
func (t tools) finish(ctx context.Context, l lowered, opt Options) error {
	best, err := run(ctx, l.text, t.opt, "-O3", "-unroll-runtime=false", "-mcpu="+opt.Arch, "-S", "-o", "-", "-")
	if err != nil {
		return fmt.Errorf("gpuc: %s: %w", l.pkg.Path, err)
	}
	text, err := run(ctx, toGlobal(best), t.llc, "-O3", "-mcpu="+opt.Arch, "-mattr=+"+opt.feature(), "-o", "-", "-")
	if err != nil {
		return fmt.Errorf("gpuc: %s: %w", l.pkg.Path, err)
	}
	l.pkg.PTX = multimemVersion(tidy(l.pkg.Path, text))
	l.pkg.dropTwins()
	return l.pkg.inspect(opt)
}

// run runs a program over a text, once: after that, what it made is kept.
func run(ctx context.Context, in string, t tool, args ...string) (string, error) {
	made, err := once(func() ([]byte, error) {
		cmd := exec.CommandContext(ctx, t.path, args...)
		cmd.Stdin = strings.NewReader(in)
		var out, bad bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &bad
		if err := cmd.Run(); err != nil {
			first, _, _ := strings.Cut(strings.TrimSpace(bad.String()), "\n")
			return nil, fmt.Errorf("%s: %w: %s", t.path, err, first)
		}
		return out.Bytes(), nil
	}, append([]string{t.version, in}, args...)...)
	return string(made), err
}
