// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/launchenv"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// benchConfig is what a bench is asked to do, as checked flags. Bench code gets it with every default filled in.
type benchConfig struct {
	jobFlags
	me       *launchenv.Launch // who this process is, if a launcher started it as one rank of several
	backend  string            // Backend, or where it is empty the environment's, which ranks find by themselves
	Local    bool              // all ranks in this process
	GPUs     int               // that these are dealt to; 0: the environment's choice
	Progress string            // auto, thread or assisted
	Bind     bool              // bind each process to a core where none polls beside it
	Sizes    []int64           // bytes, in the order asked for; none for ll and ht
	Iters    int               // timed operations per size; 0: the bench chooses
	Warmup   int               // operations before them; -1: the bench chooses
	Seed     uint64            // of all payloads and routing; the same on all ranks
	Timeout  time.Duration     // of each wait
	LSA      bool              // ranks of one node may store into each other's windows
	Windows  string            // auto, host or device: where windows lie
	Inject   string            // bitflip, lostput, doublesignal, or empty

	Tokens                []int  // ll, ht: of each rank, one after another; none: all that the routing's file has
	Hidden, TopK, Experts int    // ll, ht
	Wire                  string // ll: expert or rank, what a dispatch message is for
	Form                  string // ht: slots or rings
	Channels, Ring        int    // ht; 0 channels: the library's choice; messages of a ring
	DType                 string // ll, ht: a format of moe; coll: f32 and others
	Gating                string // ll, ht: a pattern of moe/routing
	Routing, Record       string // files; empty: none
	Op                    string // coll

	JSON  bool
	Plot  string
	Paper bool
	PTX   string // file of kernels that take the built-in ones' place; empty: none
	Pairs int    // with PTX: the built-in kernel and the file's are measured in turn, so many times; 0: the file's alone

	// Step shows progress on a terminal: done of total parts, and what comes next. It is never nil and may be called from
	// one goroutine at a time.
	Step func(done, total int, what string)
}

// MarshalJSON writes the settings that say what was measured. Those that only say where output goes are left out.
func (c benchConfig) MarshalJSON() ([]byte, error) {
	on := map[bool]string{true: "on", false: "off"}
	windows := c.Windows
	if windows == "auto" {
		windows = ""
	}
	hosts := c.Nodes
	if hosts == 1 {
		hosts = 0
	}
	return json.Marshal(struct {
		Ranks        int     `json:"ranks"`
		Nodes        int     `json:"nodes,omitempty"` // hosts, where there are several
		RanksPerNode int     `json:"ranks_per_node"`
		Net          string  `json:"net"`
		Backend      string  `json:"backend"`
		Device       string  `json:"device"`
		Local        bool    `json:"local"`
		GPUs         int     `json:"gpus,omitempty"`
		Progress     string  `json:"progress"`
		Bind         bool    `json:"bind"`
		Sizes        []int64 `json:"sizes,omitempty"`
		Iters        int     `json:"iters"`
		Warmup       int     `json:"warmup"`
		Seed         uint64  `json:"seed"`
		Timeout      string  `json:"timeout"`
		LSA          string  `json:"lsa"`
		Windows      string  `json:"windows,omitempty"`
		Inject       string  `json:"inject,omitempty"`
		Tokens       []int   `json:"tokens,omitempty"`
		Hidden       int     `json:"hidden,omitempty"`
		TopK         int     `json:"topk,omitempty"`
		Experts      int     `json:"experts,omitempty"`
		DType        string  `json:"dtype,omitempty"`
		Wire         string  `json:"wire,omitempty"`
		Form         string  `json:"form,omitempty"`
		Channels     int     `json:"channels,omitempty"`
		Ring         int     `json:"ring,omitempty"`
		Gating       string  `json:"gating,omitempty"`
		Routing      string  `json:"routing,omitempty"`
		Record       string  `json:"record,omitempty"`
		Op           string  `json:"op,omitempty"`
		PTX          string  `json:"ptx,omitempty"`
		Pairs        int     `json:"pairs,omitempty"`
	}{c.Ranks, hosts, c.RanksPerNode, c.Net, c.backend, c.Device, c.Local, c.GPUs, c.Progress, c.Bind, c.Sizes, c.Iters, c.Warmup, c.Seed, c.Timeout.String(),
		on[c.LSA], windows, c.Inject, c.Tokens, c.Hidden, c.TopK, c.Experts, c.DType, c.Wire, c.Form, c.Channels, c.Ring, c.Gating, c.Routing, c.Record, c.Op, c.PTX, c.Pairs})
}

// benchFlags are flags as typed, before they become a benchConfig.
type benchFlags struct {
	benchConfig
	sizes, lsa, tokens string
	kind               benchKind
	set                func(flag string) bool // whether it was given
}

func (b *benchFlags) register(f *pflag.FlagSet) {
	f.SortFlags = false
	b.jobFlags.register(f, b.kind.ranks)
	f.BoolVar(&b.Local, "local", false, "run all ranks in one process")
	f.IntVar(&b.GPUs, "gpus", 0, "with --local, deal the ranks to so many GPUs (default: DOORBELL_LOCAL_GPUS, or 1)")
	f.StringVar(&b.Progress, "progress", "", "who drives the proxy: `auto|thread|assisted` (default: DOORBELL_PROGRESS, or auto)")
	f.BoolVar(&b.Bind, "bind", true, "bind each rank's process to a core, in turn, unless a progress thread polls beside its kernels")
	if b.kind.sizes != "" {
		of := cmp.Or(b.kind.sizesOf, "message `SIZES`")
		if b.kind.sizesUnit > 0 {
			of += ", multiples of " + report.Size(b.kind.sizesUnit)
		}
		f.StringVar(&b.sizes, "sizes", b.kind.sizes, of+": a range by powers of two as 4..4M, or a list as 8,64,1K")
	}
	f.IntVar(&b.Iters, "iters", 0, "timed operations per size (0: as many as fit)")
	f.IntVar(&b.Warmup, "warmup", -1, "operations before the timed ones (-1: the bench chooses)")
	f.Uint64Var(&b.Seed, "seed", 0, "seed of payloads and routing (default: DOORBELL_SEED, or from the clock, or for several hosts from the job's id)")
	f.DurationVar(&b.Timeout, "timeout", 0, "deadline of each wait (default: DOORBELL_TIMEOUT, or 30s)")
	f.StringVar(&b.lsa, "lsa", b.kind.lsa, "let ranks of one node store into each other's windows: `on|off`")
	f.StringVar(&b.Windows, "windows", "auto", "where windows lie: `auto|host|device` (auto: device; they differ on a GPU)")
	f.StringVar(&b.Inject, "inject", "", "make one thing go wrong, which must be noticed: `bitflip|lostput|doublesignal`")
	f.BoolVar(&b.JSON, "json", false, "print one JSON object on standard output and nothing else")
	f.StringVar(&b.Plot, "plot", "", "draw a chart into `FILE.svg|.png|.html`")
	f.BoolVar(&b.Paper, "paper", false, "show the figures that arXiv 2511.15076 and DeepEP give, beside ours (pingpong, ll, ht)")
	f.StringVar(&b.PTX, "ptx", "", "take the kernels of this PTX or cubin `FILE` in place of the built-in ones, to compare compilers")
	f.IntVar(&b.Pairs, "pairs", 0, "with --ptx, measure the built-in kernel and the file's in turn, so many `TIMES` (pingpong)")
	_ = errors.Join(f.MarkHidden("ptx"), f.MarkHidden("pairs"))
	if b.kind.moe {
		f.StringVar(&b.tokens, "tokens", strconv.Itoa(b.kind.tokens), "`TOKENS` of each rank: one number, a range by powers of two as 1..128, or a list as 1,8,100")
		f.IntVar(&b.Hidden, "hidden", 7168, "elements of a token")
		f.IntVar(&b.TopK, "topk", 8, "experts that each token goes to")
		f.IntVar(&b.Experts, "experts", 32, "experts in the whole world; a routing's file may say another number")
		f.StringVar(&b.DType, "dtype", "bf16", "type of a token's elements on the way to experts: `"+strings.Join(moe.Formats(), "|")+"`")
		if b.kind.name == "ll" {
			f.StringVar(&b.Wire, "wire", "expert", "send a token once to each of its experts, or to each rank that has some: `expert|rank`")
		} else {
			f.StringVar(&b.Form, "form", "slots", "what messages between nodes go through: room for all, or rings: `slots|rings`")
			f.IntVar(&b.Channels, "channels", 0, "parts that a rank's tokens are cut into (0: the library chooses)")
			f.IntVar(&b.Ring, "ring", 128, "messages that a ring has room for")
		}
		f.StringVar(&b.Gating, "gating", "uniform", "draw each token's experts by a `PATTERN`: "+routing.Patterns)
		f.StringVar(&b.Routing, "routing", "", "take each token's experts from a `FILE`, layer by layer: JSON lines, or numpy's .npy or .npz")
		f.StringVar(&b.Record, "record", "", "write each token's experts to a `FILE` of JSON lines")
	}
	if b.kind.coll {
		f.StringVar(&b.Op, "op", "allreduce", "collective `OPERATION`")
		f.StringVar(&b.DType, "dtype", "f32", "type of the elements: `f32|bf16|f16`")
	}
	b.set = f.Changed
}

// config checks the flags and fills in what was not given. lookup nil is the process's environment.
func (b *benchFlags) config(lookup env.Lookup) (benchConfig, error) {
	c := b.benchConfig
	if err := c.world(lookup, b.set); err != nil {
		return c, err
	}
	if c.Ranks < b.kind.minRanks {
		return c, usagef("-n %d: %s needs at least %d ranks", c.Ranks, b.kind.name, b.kind.minRanks)
	}
	for _, v := range []struct {
		to  *string
		env env.String
	}{{&c.Net, env.Net}, {&c.Device, env.Device}, {&c.Progress, env.Progress}} {
		if *v.to == "" {
			var err error
			if *v.to, err = v.env.Get(lookup); err != nil {
				return c, usagef("%w", err)
			}
		}
	}
	if c.backend = c.Backend; c.backend == "" {
		by, err := env.GINBackend(lookup)
		if err != nil {
			return c, usagef("%w", err)
		}
		c.backend = by.Value
	}
	if c.GPUs < 0 || c.GPUs > 0 && !c.Local || c.GPUs > c.Ranks {
		return c, usagef("--gpus %d: 1 to the %d ranks' number are accepted, with --local", c.GPUs, c.Ranks)
	}
	if err := oneOf("--progress", c.Progress, "auto", "thread", "assisted"); err != nil {
		return c, err
	}
	if err := oneOf("--windows", c.Windows, "auto", "host", "device"); err != nil {
		return c, err
	}
	if err := oneOf("--inject", c.Inject, "bitflip", "lostput", "doublesignal"); err != nil {
		return c, err
	}
	if b.lsa != "on" && b.lsa != "off" {
		return c, usagef("--lsa %q: accepted are on and off", b.lsa)
	}
	c.LSA = b.lsa == "on"
	if b.kind.sizes != "" {
		var err error
		if c.Sizes, err = parseSizes(b.sizes); err != nil {
			return c, usagef("--sizes %q: %w", b.sizes, err)
		}
		for _, n := range c.Sizes {
			if unit := b.kind.sizesUnit; unit > 0 && (n < unit || n%unit != 0) {
				return c, usagef("--sizes %q: %d: multiples of %d are accepted", b.sizes, n, unit)
			}
		}
	}
	if c.Iters < 0 {
		return c, usagef("--iters %d: it must be 0, for as many as fit, or more", c.Iters)
	}
	if c.Warmup < -1 {
		return c, usagef("--warmup %d: it must be -1, for the bench's choice, or more", c.Warmup)
	}
	if c.Pairs < 0 || c.Pairs > 0 && (c.PTX == "" || b.kind.name != "pingpong") {
		return c, usagef("--pairs %d: 1 or more are accepted, with --ptx, of pingpong", c.Pairs)
	}
	if c.Plot != "" {
		if err := report.CheckPlotName(c.Plot); err != nil {
			return c, usagef("--plot: %w", err)
		}
	}
	if b.kind.moe {
		if c.Routing == "" || b.set("tokens") {
			var err error
			if c.Tokens, err = parseTokens(b.tokens); err != nil {
				return c, err
			}
		}
		if err := c.checkMoE(); err != nil {
			return c, err
		}
	}
	return c, b.fillRest(&c, lookup)
}

func (c *benchConfig) checkMoE() error {
	for _, v := range []struct {
		flag  string
		value int
	}{{"--hidden", c.Hidden}, {"--topk", c.TopK}, {"--experts", c.Experts}} {
		if v.value < 1 || v.value > 1<<24 {
			return usagef("%s %d: it must be from 1 to %d", v.flag, v.value, 1<<24)
		}
	}
	if c.TopK > c.Experts {
		return usagef("--topk %d: there are only %d experts", c.TopK, c.Experts)
	}
	if c.Form == "slots" {
		c.Ring = 0 // room for all
	} else if c.Form == "rings" && c.Ring < 2 {
		return usagef("--ring %d: it must be 2 or more", c.Ring)
	}
	if c.Channels < 0 {
		return usagef("--channels %d: it must be 0, for the library's choice, or more", c.Channels)
	}
	if _, err := routing.ParsePattern(c.Gating); err != nil {
		return usagef("--gating: %w", err)
	}
	return errors.Join(oneOf("--wire", c.Wire, "expert", "rank"), oneOf("--form", c.Form, "slots", "rings"), oneOf("--dtype", c.DType, moe.Formats()...))
}

// parseTokens reads --tokens, which is written as sizes are.
func parseTokens(s string) (all []int, err error) {
	sizes, err := parseSizes(s)
	for _, n := range sizes {
		if n < 1 || n > routing.MaxTokens {
			err = fmt.Errorf("%d: it must be from 1 to %d", n, routing.MaxTokens)
		}
		all = append(all, int(n))
	}
	if err != nil {
		return nil, usagef("--tokens %q: %w", s, err)
	}
	return all, nil
}

// format is what --dtype says of ll and ht; BF16 for the others.
func (c *benchConfig) format() moe.Format {
	f, _ := moe.ParseFormat(c.DType)
	return f
}

// fillRest chooses timeout and seed. Ranks of one job must come to the same seed without talking: from the job's id.
func (b *benchFlags) fillRest(c *benchConfig, lookup env.Lookup) (err error) {
	switch {
	case b.set("timeout") && c.Timeout <= 0:
		return usagef("--timeout %v: it must be positive", c.Timeout)
	case b.set("timeout"):
	case env.Timeout.IsSet(lookup):
		c.Timeout, err = env.Timeout.Get(lookup)
	default:
		c.Timeout = 30 * time.Second
	}
	if err != nil {
		return usagef("%w", err)
	}
	switch {
	case b.set("seed"):
	case env.Seed.IsSet(lookup):
		if c.Seed, err = env.Seed.Get(lookup); err != nil {
			return usagef("%w", err)
		}
	case c.me != nil:
		c.Seed = seedOf(c.me.Job)
	case c.Nodes > 1:
		o := c.options()
		job, err := o.SharedJob()
		if err != nil {
			return usagef("%w", err)
		}
		c.Seed = seedOf(job)
	default:
		c.Seed = uint64(time.Now().UnixNano())
	}
	return nil
}

func seedOf(job string) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, job)
	return h.Sum64()
}
