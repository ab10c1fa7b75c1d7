// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/launch"
	"github.com/doorbell-net/doorbell/internal/env"
)

// jobFlags are the flags that run and bench share.
type jobFlags struct {
	Ranks        int
	Nodes        int
	NodeRank     int
	Rendezvous   string
	Job          string
	TokenFile    string
	RanksPerNode int
	Net          string
	Backend      string
	Device       string
}

// register adds the flags; defaultRanks 0 means that -n must be given.
func (j *jobFlags) register(f *pflag.FlagSet, defaultRanks int) {
	f.IntVarP(&j.Ranks, "ranks", "n", defaultRanks, "ranks in the whole world")
	f.IntVar(&j.Nodes, "nodes", 0, "hosts that take part; each starts its share of the ranks (default: DOORBELL_NODES, or 1)")
	f.IntVar(&j.NodeRank, "node-rank", 0, "which of the hosts this is, from 0 (default: DOORBELL_NODE_RANK, or 0)")
	f.StringVar(&j.Rendezvous, "rendezvous", "", "`HOST:PORT` of host 0, where ranks of several hosts meet and rank 0 listens, or file:/PATH on storage that all hosts share")
	f.StringVar(&j.TokenFile, "token-file", "", "`FILE` of mode 0600 with the job's secret, the same on all hosts (default: DOORBELL_TOKEN_FILE, or for one host a new secret)")
	f.StringVar(&j.Job, "job", "", "`ID` of the job, the same on all hosts (default: made from the port or the file's name and the token, or for one host at random)")
	f.IntVar(&j.RanksPerNode, "ranks-per-node", 0, "cut each host into virtual nodes of `K` ranks: LSA inside, network between (0: not cut)")
	f.StringVar(&j.Net, "net", "", "network `PLUGIN`: auto, shm, tcp, on a GPU ce, dma, staged+tcp, or fault+shm and the like, which misbehave (default: DOORBELL_NET, or auto)")
	f.StringVar(&j.Backend, "backend", "", "who drives the network: `auto|proxy|gdaki` (default: DOORBELL_GIN_BACKEND, or auto)")
	f.StringVar(&j.Device, "device", "", "what runs the kernels: `auto|soft|cuda` (default: DOORBELL_DEVICE, or auto)")
}

var netName = regexp.MustCompile(`^[a-z][a-z0-9_-]*(\+[a-z][a-z0-9_-]*)*$`)

// check refuses what no machine could do. Whether this one can is for the ranks to find out.
func (j *jobFlags) check() error {
	switch {
	case j.Ranks < 1 || j.Ranks > launch.MaxRanks:
		return usagef("-n %d: the number of ranks must be from 1 to %d", j.Ranks, launch.MaxRanks)
	case j.RanksPerNode < 0 || j.RanksPerNode > 0 && j.Ranks%j.RanksPerNode != 0:
		return usagef("--ranks-per-node %d: it must divide the number of ranks, which is %d", j.RanksPerNode, j.Ranks)
	case j.Net != "" && !netName.MatchString(j.Net):
		return usagef("--net %q: accepted are auto, a plugin's name as shm or tcp, or fault+NAME", j.Net)
	}
	if err := oneOf("--backend", j.Backend, "auto", "proxy", "gdaki"); err != nil {
		return err
	}
	return oneOf("--device", j.Device, "auto", "soft", "cuda")
}

// hosts takes from the environment which host this is, where flags do not say it, and refuses what hosts could not agree
// upon. It is for who starts ranks; a rank does not call it. lookup nil is the process's environment.
func (j *jobFlags) hosts(lookup env.Lookup, given func(flag string) bool) error {
	for _, v := range []struct {
		flag string
		from env.Int
		to   *int
		def  int
	}{{"nodes", env.Nodes, &j.Nodes, 1}, {"node-rank", env.NodeRank, &j.NodeRank, 0}} {
		switch {
		case given(v.flag):
		case v.from.IsSet(lookup):
			var err error
			if *v.to, err = v.from.Get(lookup); err != nil {
				return usagef("%w", err)
			}
		default:
			*v.to = v.def
		}
	}
	switch {
	case j.Nodes < 1:
		return usagef("--nodes %d: at least 1 is needed", j.Nodes)
	case j.NodeRank < 0 || j.NodeRank >= j.Nodes:
		return usagef("--node-rank %d: with --nodes %d it must be from 0 to %d", j.NodeRank, j.Nodes, j.Nodes-1)
	case j.Nodes == 1 && j.Rendezvous != "":
		return usagef("--rendezvous %s: only jobs of several hosts meet at an address, and --nodes is 1", j.Rendezvous)
	case j.Nodes == 1:
		return nil
	case j.Ranks%j.Nodes != 0:
		return usagef("-n %d: it must be a multiple of --nodes %d, since each host starts as many ranks", j.Ranks, j.Nodes)
	case j.RanksPerNode > 0 && j.Ranks/j.Nodes%j.RanksPerNode != 0:
		return usagef("--ranks-per-node %d: it must divide each host's share of the ranks, which is %d", j.RanksPerNode, j.Ranks/j.Nodes)
	}
	var missing []string
	if j.Rendezvous == "" {
		missing = append(missing, "--rendezvous HOST:PORT or file:/PATH")
	}
	if j.TokenFile == "" && !env.TokenFile.IsSet(lookup) && !env.Token.IsSet(lookup) {
		missing = append(missing, "--token-file FILE")
	}
	if len(missing) > 0 {
		return usagef("--nodes %d: %s missing; all hosts say the same", j.Nodes, strings.Join(missing, " and "))
	}
	if err := launch.CheckRendezvous(j.Rendezvous); err != nil {
		return usagef("--rendezvous: %w", err)
	}
	return nil
}

// oneOf accepts an empty value, which means that the flag was not given.
func oneOf(flag, value string, accepted ...string) error {
	if value == "" || slices.Contains(accepted, value) {
		return nil
	}
	return usagef("%s %q: accepted are %s", flag, value, strings.Join(accepted, ", "))
}

func (j *jobFlags) options() launch.Options {
	return launch.Options{N: j.Ranks, Nodes: j.Nodes, NodeRank: j.NodeRank, Rendezvous: j.Rendezvous, Job: j.Job, TokenFile: j.TokenFile,
		RanksPerNode: j.RanksPerNode, Net: j.Net, Backend: j.Backend, Device: j.Device}
}
