// SPDX-License-Identifier: Apache-2.0

// Package doctor says what a machine offers, what is missing, and how to get it. It needs no root and changes nothing.
//
// To add a check: write a func(context.Context, *Machine, Options) Result, put it into the registry below, and give the
// machines of the tests what it reads.
package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Verdict is what came of a check.
type Verdict string

const (
	OK      Verdict = "ok"
	Limited Verdict = "limited" // it works, and more could be had
	Missing Verdict = "missing"
)

// Check is one check's outcome.
type Check struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Needed  bool    `json:"needed"` // what was asked for does not work without it
	Found   string  `json:"found"`
	Gives   string  `json:"gives"`
	How     string  `json:"how,omitempty"` // to get it, or more of it
}

// Report is all of them. OK is false if something that is needed is missing.
type Report struct {
	Checks []Check `json:"checks"`
	OK     bool    `json:"ok"`
}

// Options say for what job the machine is looked at.
type Options struct {
	Ranks      int    // on this host; 0: not said
	Rendezvous string // HOST:PORT, or file:/path; empty: a job of this host alone
	TokenFile  string // empty: DOORBELL_TOKEN_FILE, DOORBELL_TOKEN, or none
	Interfaces string // filter, as netif.Select takes it
}

// Result is what a check has to say. The zero verdict leaves the check out: it was not asked for.
type Result struct {
	Verdict Verdict
	Needed  bool
	Found   string
	How     string
}

// registry is the checks in the order in which they are shown.
var registry = []struct {
	name, gives string
	run         func(context.Context, *Machine, Options) Result
}{
	{"system", "ranks as processes", system},
	{"cores", "a core for each rank", cores},
	{"memory", "windows", memory},
	{"memlock", "windows that a NIC reads (RDMA)", memlock},
	{"shared memory", "LSA: stores into another rank's window", shared},
	{"futex", "waits that sleep, not poll", futex},
	{"membarrier", "an idle proxy that wakes at once", membarrier},
	{"interfaces", "ranks on several hosts", interfaces},
	{"rendezvous", "where these meet", rendezvous},
	{"token", "puts of this job's ranks alone", token},
	{"gpu", "kernels on a GPU, not goroutines", gpu},
	{"rdma", "puts that no CPU carries", rdma},
	{"gdaki NIC", "kernels that drive a ConnectX-6 Dx", gdakiNIC},
	{"gdaki driver", "the same (driver for CUDA 12.2)", gdakiDriver},
	{"gdaki memory", "the same (peermem module or dma-buf)", gdakiMemory},
	{"gdaki mapping", "the same (doorbell mapping allowed)", gdakiMapping},
}

// Run makes all checks. It ends soon after ctx does; each look at the network is bounded by Machine.Bound.
func Run(ctx context.Context, m Machine, o Options) Report {
	r := Report{OK: true}
	for _, c := range registry {
		x := c.run(ctx, &m, o)
		if x.Verdict == "" {
			continue
		}
		r.Checks = append(r.Checks, Check{c.name, x.Verdict, x.Needed, x.Found, c.gives, x.How})
		if x.Needed && x.Verdict == Missing {
			r.OK = false
		}
	}
	return r
}

// WriteJSON writes the report as one line.
func (r Report) WriteJSON(w io.Writer) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// WriteText writes a table, then how to get what is not there.
func (r Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CHECK\tVERDICT\tGIVES\tFOUND")
	var how, missing []string
	for _, c := range r.Checks {
		for i, line := range strings.Split(c.Found, "\n") {
			if i == 0 {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.Name, c.Verdict, c.Gives, line)
			} else {
				fmt.Fprintf(t, "\t\t\t%s\n", line)
			}
		}
		if c.How != "" {
			how = append(how, c.Name+": "+c.How)
		}
		if c.Needed && c.Verdict == Missing {
			missing = append(missing, c.Name)
		}
	}
	t.Flush() // to a buffer, which takes all
	for i, h := range how {
		if i == 0 {
			b.WriteString("\nTo get more:\n")
		}
		fmt.Fprintf(&b, "  %s\n", h)
	}
	if r.OK {
		b.WriteString("\nok: nothing that is needed is missing\n")
	} else {
		fmt.Fprintf(&b, "\nmissing, and needed: %s\n", strings.Join(missing, ", "))
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
