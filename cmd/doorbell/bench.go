// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/benches"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/launch"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/internal/env"
)

// benchKind is what benches differ in on the command line.
type benchKind struct {
	name, short string
	long        string // empty: short
	ranks       int    // by default
	minRanks    int    // that make sense
	sizes       string // by default; empty: has no sizes
	sizesOf     string // what they are; empty: messages
	sizesUnit   int64  // they are multiples of; 0: any
	lsa         string // by default
	moe, coll   bool
	tokens      int // of moe, by default
	notBuilt    bool
	hidden      bool // for who measures our own parts, not in the list
}

var benchKinds = []benchKind{
	{name: "pingpong", short: "round trip of put + signal between pairs of ranks", ranks: 2, minRanks: 2, sizes: "4..4M", lsa: "off"},
	{name: "bw", short: "bandwidth of puts in flight", ranks: 2, minRanks: 2, sizes: "4..4M", lsa: "off"},
	{name: "rate", short: "small puts per second", ranks: 2, minRanks: 2, sizes: "8", lsa: "off"},
	{name: "alltoall", short: "every rank puts to every rank", ranks: 4, minRanks: 1, sizes: "4..4M", lsa: "on"},
	{name: "ll", short: "MoE dispatch and combine, low latency", long: llLong, ranks: 4, minRanks: 1, lsa: "on", moe: true, tokens: 64},
	{name: "ht", short: "MoE dispatch and combine, high throughput", long: htLong, ranks: 4, minRanks: 1, lsa: "on", moe: true, tokens: 4096},
	{name: "fused", short: "layers that send each tile as it is computed, beside two kernels, and beside the host", long: fusedLong, ranks: 4, minRanks: 2,
		sizes: "4K,16K,64K", sizesOf: "`SIZES` of what each rank computes and sends to each other", sizesUnit: benches.FusedTile, lsa: "on"},
	{name: "post", short: "what a put costs the device alone", ranks: 2, minRanks: 2, sizes: "8,64K", lsa: "off", hidden: true},
	{name: "coll", short: "collectives", ranks: 4, minRanks: 1, sizes: "4..4M", lsa: "on", coll: true, notBuilt: true},
}

const llLong = `Measures dispatch and combine of a mixture of experts, one operation after another, and verifies what comes. GB/s counts
bytes as published figures do: for each selection of a token its elements, scales and a header of 16 bytes (dispatch) or its
BF16 elements (combine), those that stay on their rank too. What is truly sent stands beside it, and the memcpys that the
algorithm needs, of a combine those of its whole input, measured in turn with the operations. The published shapes; they need
10, 20 and 6 GB, and 64 ranks of hidden 7168 would need 80:

  doorbell bench ll --local -n 8 --tokens 1..128 --experts 256 --dtype fp8 --paper
  doorbell bench ll --local -n 16 --ranks-per-node 8 --tokens 128 --experts 256 --dtype fp8 --paper
  doorbell bench ll --local -n 64 --ranks-per-node 8 --tokens 128 --experts 256 --dtype fp8 --hidden 512 --paper

` + routingLong

const htLong = `Measures dispatch, dispatch again (other rows to places that are known) and combine of thousands of tokens (moe.HTBuffer), and
verifies what comes. A token goes once to each node and there once to each rank, whatever the number of its experts. GB/s counts
bytes as published figures do: in a world of one node the rows that a rank receives (NVLink), of several a row for each token and
node that it goes to (RDMA), what stays on the rank or its node too; a row is BF16, or of FP8 elements and a scale of 4 bytes for
128. What is truly moved stands beside it, with what the ranks tell each other of their layout, and the memcpys that the algorithm
needs: each row to its place, and of each message to another node its row into it and across; for a combine each row that is read,
and each answer across. Published figures of DeepEP's dispatch are of a dispatch again. The published shapes of one and
two nodes, the second at a hidden size that there is memory for (of more than 4 nodes they are routed by --gating groups:NODES:4):

  doorbell bench ht --local -n 8 --experts 256 --dtype fp8 --paper
  doorbell bench ht --local -n 16 --ranks-per-node 8 --experts 256 --dtype fp8 --hidden 1024 --paper

` + routingLong

const routingLong = `--routing replays recorded gating: each layer in turn, token by token. A file is what --record wrote, or numpy's; with PyTorch,
of tensors [tokens, topk] of each layer:

  idx = torch.stack(layers_idx).view(len(layers_idx), ranks, -1, topk).cpu()    # integers, -1 for none
  w = torch.stack(layers_weights).view_as(idx).float().cpu()
  numpy.savez("routing.npz", idx=idx, weights=w, experts=256)

numpy.save("routing.npy", idx) is enough where weights do not matter: each is then 1/topk, and --experts says how many
experts there are.`

const fusedLong = `Measures two layers that exchange what they compute, RMSNorm with all-gather and GEMV with all-reduce, each in three forms
of the same work over the same memory: fused, one kernel that sends each tile of 4 KiB as soon as it is computed; unfused, a
kernel that computes all and then one that sends all; host, the same with the host waiting between any two kernels, where a
kernel that only communicates stands for the transfer that the host would post. A time is a round as the host sees it, from
the first launch to the end of its wait; GB/s is what a rank sends to all others.`

// benchRunner is runBench; tests put another in its place.
var benchRunner = runBench

// childVar marks a process that bench has started as one of its ranks. It is not in the registry of variables, because no
// user sets it.
var childVar = env.Prefix + "BENCH_CHILD"

func newBench(args []string, stdout, stderr io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "measure, and verify every byte",
		Long: `Measures, and verifies: each received byte is compared with a value that the receiver computes by itself, and every
signal and counter with the value it must have. Comparing is off the clock. Without --local, the ranks are processes;
with --nodes, of several hosts, as "doorbell run" starts them, and only node 0 prints the result. Under another launcher
(torchrun, srun, mpirun, mpiexec) each process is one rank, and only rank 0 prints.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("no bench %q", args[0])
			}
			return usagef("say which: pingpong, bw, rate, alltoall, ll, ht, fused or coll")
		},
	}
	for _, kind := range benchKinds {
		cmd.AddCommand(newBenchKind(kind, args, stdout, stderr))
	}
	return cmd
}

func newBenchKind(kind benchKind, args []string, stdout, stderr io.Writer) *cobra.Command {
	b := &benchFlags{kind: kind}
	cmd := &cobra.Command{
		Use:    kind.name,
		Short:  kind.short,
		Long:   kind.long,
		Hidden: kind.hidden,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := b.config(nil)
			if err != nil {
				return err
			}
			if kind.notBuilt {
				return unavailablef("not built yet")
			}
			s := &session{name: kind.name, cfg: cfg, stdout: stdout, stderr: stderr, head: cmd.CommandPath()}
			switch {
			case os.Getenv(childVar) != "":
				err = s.child(cmd.Context())
			case cfg.Local || cfg.me != nil:
				err = s.direct(cmd.Context())
			default:
				err = s.parent(cmd.Context(), args)
			}
			return err
		},
	}
	if kind.notBuilt {
		cmd.Short += " (not built yet)"
	}
	b.register(cmd.Flags())
	return cmd
}

// session is one bench command.
type session struct {
	name, head     string
	cfg            benchConfig
	stdout, stderr io.Writer
}

// measure runs the bench on this process's ranks and completes its result.
func (s *session) measure(ctx context.Context, show bool) (report.Result, error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var clear func()
	s.cfg.Step, clear = newProgress(s.stderr, s.name, show)
	host := report.StampHost()
	r, err := benchRunner(ctx, s.name, s.cfg)
	clear()
	host.Finish()
	if r.Bench == "" {
		r.Bench = s.name
	}
	if r.Config == nil {
		r.Config = s.cfg
	}
	if r.Host.Date == "" {
		if r.Host.Hosts > 0 { // the ranks have found out
			host.Hosts = r.Host.Hosts
		}
		r.Host = host
	}
	if err != nil {
		r.Verified = false
		if r.Error == "" {
			r.Error = strings.ReplaceAll(err.Error(), "\n", "; ") // joined errors come a line each
		}
	}
	if r.Error != "" || len(r.Rows) == 0 {
		r.Verified = false
	}
	return r, err
}

// direct runs all ranks in this process, or the one that some launcher made it; then only rank 0 prints.
func (s *session) direct(ctx context.Context) error {
	rank := 0
	if me := s.cfg.me; me != nil {
		rank = me.Rank
	}
	r, err := s.measure(ctx, rank == 0)
	if rank != 0 {
		return s.quiet(rank, err)
	}
	return s.show(r, err)
}

// child is one of the ranks that parent has started. Rank 0 hands its result to the parent, over standard output, which
// carries nothing else. Its exit status tells of errors; a wrong byte is in the result.
func (s *session) child(ctx context.Context) error {
	os.Unsetenv(childVar)
	// A rank is in a process group of its own, and rank 0 may write to the terminal all the same.
	signal.Ignore(syscall.SIGTTOU)
	pipe := os.Stdout
	os.Stdout = os.Stderr
	if s.cfg.me == nil {
		return usagef("%s is set, but no launcher's variables are", childVar)
	}
	rank := s.cfg.me.Rank
	r, err := s.measure(ctx, rank == 0)
	if rank == 0 {
		wire, werr := json.Marshal(r)
		if werr == nil {
			_, werr = pipe.Write(wire)
		}
		if werr != nil {
			return fmt.Errorf("hand result to the launcher: %w", werr)
		}
	}
	return s.quiet(rank, err)
}

// quiet ends a rank that prints no result. The line begins with "doorbell", so that our launcher quotes it.
func (s *session) quiet(rank int, err error) error {
	if err == nil {
		return nil
	}
	fmt.Fprintf(s.stderr, "doorbell: rank %d: %v\n", rank, err)
	return &exitError{code: codeOf(err), err: err, said: true}
}

// lingerAfterFailure is how long ranks may take to notice that another has failed, and to say so in the result.
const lingerAfterFailure = 2 * time.Second

// parent starts the ranks as processes of this program, or this host's share of them, and shows what rank 0 says. On a
// host without rank 0 it shows nothing, and its exit status tells only of its own ranks.
func (s *session) parent(ctx context.Context, args []string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program to start as ranks: %w", err)
	}
	var out bytes.Buffer
	o := s.cfg.options()
	o.Program, o.Args, o.Progress = exe, args, s.cfg.Progress
	o.Env = []string{childVar + "=1", env.Seed.Name() + "=" + strconv.FormatUint(s.cfg.Seed, 10)}
	o.Stdout, o.Stderr, o.Name = s.stderr, s.stderr, s.head
	o.RawStdout = &limited{to: &out, left: report.MaxJSON + 1}
	if f, ok := s.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		o.RawStderr = f // for rank 0's progress
	}
	o.Linger = lingerAfterFailure
	code, err := launch.Run(ctx, o)
	if err != nil {
		var rank *launch.RankError
		said := errors.As(err, &rank)
		if said && (rank.Code == launch.ExitUsage || rank.Code == launch.ExitUnavailable) {
			code = rank.Code
		}
		err = &exitError{code: code, err: err, said: said}
	}
	if s.cfg.NodeRank > 0 {
		return err
	}
	return s.show(joined(s.name, s.cfg, out.Bytes(), err))
}

// joined is the result that rank 0 handed over, seen with how the ranks ended.
func joined(name string, cfg benchConfig, wire []byte, ended error) (report.Result, error) {
	r, err := report.Decode(wire)
	if err != nil {
		r = report.Result{Bench: name, Config: cfg, Host: report.StampHost()}
		if ended == nil {
			ended = fmt.Errorf("rank 0 handed over no result: %w", err)
		}
	}
	if ended == nil {
		return r, nil
	}
	r.Verified = false
	var rank *launch.RankError
	switch {
	case r.Error == "":
		r.Error = ended.Error()
	case errors.As(ended, &rank) && (rank.Rank == 0 || strings.Contains(rank.Detail, r.Error)): // rank 0 has told it
	default:
		r.Error += "; " + ended.Error()
	}
	return r, ended
}

// show prints the result, draws the chart, and turns what came out into an exit status.
func (s *session) show(r report.Result, failure error) error {
	if s.cfg.JSON {
		if err := r.WriteJSON(s.stdout); err != nil {
			return err
		}
	} else if err := r.WriteTable(s.stdout, s.cfg.Paper); err != nil {
		return err
	}
	if s.cfg.Paper && len(report.PublishedFor(s.name)) == 0 {
		fmt.Fprintf(s.stderr, "%s: --paper has figures for pingpong, ll and ht only\n", s.head)
	}
	if s.cfg.Plot != "" && len(r.Rows) > 0 {
		if err := report.WritePlot(s.cfg.Plot, r, report.ChartOptions{Paper: s.cfg.Paper}); err != nil {
			return err
		}
	}
	// The result has told what is wrong; on stderr it stands as well, for those who keep only that.
	switch {
	case failure != nil:
		var e *exitError
		said := errors.As(failure, &e) && e.said
		if !said && s.cfg.JSON {
			fmt.Fprintf(s.stderr, "%s: %v\n", s.head, failure)
		}
		return &exitError{code: codeOf(failure), err: failure, said: true}
	case !r.Verified:
		err := errors.New("not verified: " + r.Error)
		if s.cfg.JSON {
			fmt.Fprintf(s.stderr, "%s: %v\n", s.head, err)
		}
		return &exitError{code: launch.ExitFailed, err: err, said: true}
	}
	return nil
}

// limited keeps the first bytes of a stream and drops the rest.
type limited struct {
	to   *bytes.Buffer
	left int
}

func (l *limited) Write(b []byte) (int, error) {
	keep := b[:min(len(b), l.left)]
	l.left -= len(keep)
	l.to.Write(keep)
	return len(b), nil
}
