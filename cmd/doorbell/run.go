// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/launch"
)

func newRun(stdout, stderr io.Writer) *cobra.Command {
	var j jobFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARGS]",
		Short: "start the ranks of a program, on this host or several",
		Long: `Starts N processes of a program as the ranks of one job, tells each who it is by DOORBELL_* variables, and prefixes
each line of output with its rank. Signals are passed on. When one rank fails, the others are ended (SIGTERM, and SIGKILL
after 5 s) with whatever they started, and the exit status is 1. Rank 0 gets standard input, unless that is a terminal.

With --nodes M, each of M hosts starts N/M of the ranks, and the same line is given on each, with its own --node-rank.
Rank 0 listens at the rendezvous, which all hosts must be able to reach; or they meet by a file on storage that all share,
where rank 0 writes its addresses. When a rank fails on one host, the ranks of the
others find it lost, and each launcher says which of its own ended, and why.`,
		Example: `  doorbell run -n 4 -- ./myprogram --its-own flags
  doorbell run -n 4 --nodes 2 --node-rank 0 --rendezvous node0:4711 --token-file ~/token -- ./myprogram   # on node0
  doorbell run -n 4 --nodes 2 --node-rank 1 --rendezvous node0:4711 --token-file ~/token -- ./myprogram   # on node1`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no program given: doorbell run -n 4 -- PROGRAM [ARGS]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("ranks") {
				return usagef("-n is needed: the number of ranks")
			}
			if err := cmp.Or(j.check(), j.hosts(nil, cmd.Flags().Changed)); err != nil {
				return err
			}
			o := j.options()
			o.Program, o.Args = args[0], args[1:]
			o.Stdout, o.Stderr = stdout, stderr
			if !term.IsTerminal(int(os.Stdin.Fd())) {
				o.Stdin = os.Stdin // a rank is in a process group of its own, which must not read from the terminal
			}
			code, err := launch.Run(cmd.Context(), o)
			if err == nil {
				return nil
			}
			var rank *launch.RankError
			return &exitError{code: code, err: err, said: errors.As(err, &rank)}
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.SetInterspersed(false) // the program's flags are its own, also without --
	j.register(f, 0)
	return cmd
}
