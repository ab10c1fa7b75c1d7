// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/doctor"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/launch"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/netif"
)

// machine is what doctor looks at; tests put another in its place.
var machine = doctor.This

func newDoctor(stdout io.Writer) *cobra.Command {
	var o doctor.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "say what this machine offers, and what is missing",
		Long: `Looks at this machine, without root and without changing anything: what is there, what it gives, and how to get what is
not. Give it the flags of the job that shall run. Interfaces are those of DOORBELL_INTERFACES, or all that are up.

Exit status: 0 nothing needed is missing, 1 something needed is missing, 2 called wrongly.`,
		Example: `  doorbell doctor -n 4
  doorbell doctor -n 4 --rendezvous node0:4711 --token-file ~/token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("ranks") && (o.Ranks < 1 || o.Ranks > launch.MaxRanks) {
				return usagef("-n %d: the number of ranks must be from 1 to %d", o.Ranks, launch.MaxRanks)
			}
			if o.Rendezvous != "" {
				if err := launch.CheckRendezvous(o.Rendezvous); err != nil {
					return usagef("--rendezvous: %w", err)
				}
			}
			m := machine()
			if env.Interfaces.IsSet(m.Env) {
				var err error
				if o.Interfaces, err = env.Interfaces.Get(m.Env); err == nil {
					err = netif.CheckFilter(o.Interfaces)
				}
				if err != nil {
					return usagef("%s: %w", env.Interfaces.Name(), err)
				}
			}
			r := doctor.Run(cmd.Context(), m, o)
			write := r.WriteText
			if asJSON {
				write = r.WriteJSON
			}
			if err := write(stdout); err != nil {
				return err
			}
			if !r.OK {
				return &exitError{code: launch.ExitFailed, err: errors.New("something that is needed is missing"), said: true}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVarP(&o.Ranks, "ranks", "n", 0, "ranks on this host")
	f.StringVar(&o.Rendezvous, "rendezvous", "", "`HOST:PORT` where ranks of several hosts shall meet: it is resolved, and tried from each interface; or file:/PATH, which is looked at")
	f.StringVar(&o.TokenFile, "token-file", "", "`FILE` with the job's secret (default: DOORBELL_TOKEN_FILE)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object on standard output and nothing else")
	return cmd
}
