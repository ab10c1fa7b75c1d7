// SPDX-License-Identifier: Apache-2.0

// Command doorbell starts ranks (run), measures and verifies (bench), says what a machine offers (doctor), and will look
// into running jobs (top, trace, explain). Its exit status is 0 when all went well and was verified, 1 when something was wrong or failed, 2 when it was
// called wrongly, 3 when what was asked for is not available here.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/launch"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
)

func main() {
	launch.Main()
	os.Exit(cli(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// exitError is an error with the exit status that it means.
type exitError struct {
	code int
	err  error
	said bool // the user has been told already
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usagef says that the command was called wrongly: exit status 2.
func usagef(format string, args ...any) error {
	return &exitError{code: launch.ExitUsage, err: fmt.Errorf(format, args...)}
}

// unavailablef says that something is not built yet, or that this machine lacks it: exit status 3.
func unavailablef(format string, args ...any) error {
	return &exitError{code: launch.ExitUnavailable, err: fmt.Errorf(format, args...)}
}

// codeOf is the exit status for an error; what has none of its own is a failure.
func codeOf(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return launch.ExitOK
	case errors.As(err, &e):
		return e.code
	}
	return launch.ExitFailed
}

// cli runs one command line and returns the exit status.
func cli(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(args, stdout, stderr)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return launch.ExitOK
	}
	var e *exitError
	if !errors.As(err, &e) { // cobra's own: an unknown command or flag, a value that can't be read
		e = &exitError{code: launch.ExitUsage, err: err}
	}
	if e.said {
		return e.code
	}
	fmt.Fprintf(stderr, "%s: %v\n", cmd.CommandPath(), e.err)
	if e.code == launch.ExitUsage {
		fmt.Fprintf(stderr, "Run \"%s --help\" for what is accepted.\n", cmd.CommandPath())
	}
	if strings.HasPrefix(cmd.CommandPath(), "doorbell bench") && wantsJSON(args) {
		r := report.Result{Bench: cmd.Name(), Host: report.StampHost(), Error: e.Error()}
		if err := r.WriteJSON(stdout); err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", cmd.CommandPath(), err)
		}
	}
	return e.code
}

// wantsJSON looks for --json where flags could not be parsed: a script that asked for an object gets one.
func wantsJSON(args []string) bool {
	return slices.Contains(args, "--json") || slices.Contains(args, "--json=true")
}
