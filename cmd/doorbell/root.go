// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func newRoot(args []string, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "doorbell",
		Short: "GPU-initiated networking in Go",
		Long: `Doorbell: GPU-initiated networking in Go. Kernels post their own puts and signals.

Exit status: 0 verified, 1 wrong or failed, 2 called wrongly, 3 not available here.`,
		SilenceErrors: true, // cli prints them
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("no command %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		newRun(stdout, stderr),
		newBench(args, stdout, stderr),
		newDoctor(stdout),
		notBuilt("top", "watch the counters of running ranks"),
		notBuilt("trace", "record when each operation was posted, sent and seen"),
		notBuilt("explain", "say who waits for whom, and why"),
		newVersion(),
	)
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

func versionLine() string {
	version, revision := "(devel)", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = " " + s.Value[:min(len(s.Value), 12)] + revision
			case s.Key == "vcs.modified" && s.Value == "true":
				revision += " modified"
			}
		}
	}
	return strings.Join([]string{"doorbell", version + revision, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}, " ")
}

// notBuilt is a command that will come. It takes the flags it will take, so that scripts can be written for it.
func notBuilt(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:   name,
		Short: short + " (not built yet)",
		RunE:  func(*cobra.Command, []string) error { return unavailablef("not built yet") },
	}
}
