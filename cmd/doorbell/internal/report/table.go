// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteTable writes the result for a reader: what was measured where, a line for each row, what of it is emulated, and
// whether it was verified. Columns that no row has a figure for are left out. With paper, what was published stands beside
// the rows and below.
func (r Result) WriteTable(w io.Writer, paper bool) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "doorbell bench %s\n", r.Bench)
	fmt.Fprintf(&b, "host: %s\n", r.Host)
	common, columns := r.layout()
	if paper {
		columns = append(columns, r.shown(column{"published", func(x Row) string { return besideRow(r.Bench, x) }, func(x Row) bool { return besideRow(r.Bench, x) != "" }})...)
	}
	if common != "" {
		fmt.Fprintln(&b, common)
	}
	b.WriteByte('\n')
	if len(r.Rows) > 0 {
		tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, c := range columns {
			fmt.Fprint(tw, c.head, "\t")
		}
		fmt.Fprintln(tw)
		for _, row := range r.Rows {
			for _, c := range columns {
				fmt.Fprint(tw, c.cell(row), "\t")
			}
			fmt.Fprintln(tw)
		}
		if err := tw.Flush(); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
		b.WriteByte('\n')
	}
	for _, row := range r.Rows {
		if row.MoE != nil {
			writeMoE(&b, row, len(r.Rows) <= 2)
		}
	}
	for _, n := range r.Notes() {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	fmt.Fprintln(&b, r.verdict())
	if paper {
		b.WriteString(PaperText(r.Bench))
	}
	_, err := w.Write(b.Bytes())
	return err
}

type column struct {
	head string
	cell func(Row) string
	show func(Row) bool // the column appears if this holds for any row
}

func always(Row) bool   { return true }
func isMoE(x Row) bool  { return x.MoE != nil }
func onNIC(x Row) bool  { return x.PerPut != nil }
func copied(x Row) bool { return isMoE(x) && x.MoE.CopyRatio > 0 }

// shown are the columns that any row has something for.
func (r Result) shown(all ...column) (columns []column) {
	for _, c := range all {
		if slices.ContainsFunc(r.Rows, c.show) {
			columns = append(columns, c)
		}
	}
	return columns
}

// count is a number of things, "" for none.
func count(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// layout says what all rows share, which is printed once, and gives the columns for the rest.
func (r Result) layout() (common string, columns []column) {
	who := []column{
		{"ranks", func(x Row) string { return strconv.Itoa(x.Ranks) }, nil},
		{"nodes", func(x Row) string { return strconv.Itoa(x.Nodes) }, nil},
		{"net", func(x Row) string { return x.Net }, nil},
		{"backend", func(x Row) string { return x.Backend }, nil},
		{"device", func(x Row) string { return x.Device }, nil},
		{"GPUs", func(x Row) string { return count(x.GPUs) }, nil},
		{"progress", func(x Row) string { return x.Progress }, nil},
		{"emulated", func(x Row) string { return yes(x.Emulated) }, nil},
	}
	all := []column{
		{"what", func(x Row) string { return x.Label }, func(x Row) bool { return x.Label != "" }},
		{"tokens", func(x Row) string { return strconv.Itoa(x.MoE.Tokens) }, isMoE},
		{"size", func(x Row) string { return Size(x.Bytes) }, always},
	}
	var shared []string
	for _, c := range who {
		if len(r.Rows) == 0 {
			break
		}
		first, same := c.cell(r.Rows[0]), true
		for _, x := range r.Rows {
			same = same && c.cell(x) == first
		}
		if !same {
			c.show = always
			all = append(all, c)
		} else if first != "" {
			shared = append(shared, c.head+"="+first)
		}
	}
	all = append(all,
		column{"iters", func(x Row) string { return strconv.FormatInt(x.Iters, 10) }, always},
		column{"mean us", func(x Row) string { return decimals(x.MeanUS) }, func(x Row) bool { return x.MeanUS > 0 }},
		column{"p50 us", func(x Row) string { return decimals(x.P50US) }, func(x Row) bool { return x.P50US > 0 }},
		column{"p99 us", func(x Row) string { return decimals(x.P99US) }, func(x Row) bool { return x.P99US > 0 }},
		column{"min us", func(x Row) string { return decimals(x.MinUS) }, func(x Row) bool { return x.MinUS > 0 }},
		column{"max us", func(x Row) string { return decimals(x.MaxUS) }, isMoE},
		column{"GB/s", func(x Row) string { return decimals(x.GBps) }, func(x Row) bool { return x.GBps > 0 }},
		column{"Mops/s", func(x Row) string { return decimals(x.Mops) }, func(x Row) bool { return x.Mops > 0 }},
		column{"doorbells/put", func(x Row) string { return decimals(x.perPut().Doorbells) }, onNIC},
		column{"WQE B/put", func(x Row) string { return decimals(x.perPut().WQEBytes) }, onNIC},
		column{"stores/put", func(x Row) string { return decimals(x.perPut().Stores) }, onNIC},
		column{"x memcpys", func(x Row) string { return decimals(x.MoE.CopyRatio) }, copied},
		column{"checked", func(x Row) string { return Size(x.CheckedBytes) }, always},
	)
	return strings.Join(shared, " "), r.shown(all...)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Notes says, a sentence each, what in the rows stands for something that was not there.
func (r Result) Notes() []string {
	var quiet, tcp bool
	var some standIns
	for _, x := range r.Rows {
		switch {
		case r.NoNetwork(x) && innermost(x.Net) == "tcp":
			tcp = true
		case r.NoNetwork(x):
			quiet = true
		}
		s := x.standIns(r.Host.Hosts)
		some = standIns{some.nodes || s.nodes, some.device || s.device, some.nic || s.nic, some.gpus || s.gpus}
	}
	var notes []string
	if quiet {
		notes = append(notes, "no network: the ranks share one host; these are figures of memory, not of a wire")
	}
	if tcp {
		notes = append(notes, "no network: the ranks share one host, that is one boot id; TCP went through its kernel and over no wire")
	}
	if some.nodes {
		notes = append(notes, "emulated nodes: one host is cut into virtual nodes or namespaces")
	}
	if some.device {
		notes = append(notes, "emulated device: kernels ran as goroutines on CPU cores, not on a GPU")
	}
	if some.nic {
		notes = append(notes, "emulated NIC: a program read the work queues that kernels wrote; these are figures of no NIC, and none to compare with the proxy's")
	}
	if some.gpus {
		notes = append(notes, "emulated GPUs: several ranks share one, with its memory between them and its multiprocessors dealt out")
	}
	return notes
}

// softNIC is the NIC that is none.
const softNIC = "softnic"

func (r Result) verdict() string {
	var checked int64
	for _, x := range r.Rows {
		checked += x.CheckedBytes
	}
	switch {
	case r.Error != "":
		return "verified: NO: " + r.Error
	case !r.Verified || len(r.Rows) == 0:
		return "verified: NO"
	}
	return fmt.Sprintf("verified: yes (%s compared)", Size(checked))
}
