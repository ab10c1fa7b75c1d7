// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"
)

// Chart is what a plot shows, before any drawing. Tests compare it; drawing adds no data.
type Chart struct {
	Title    string
	Subtitle string
	Panels   []Panel
	Notes    []string // sentences below the panels
}

// Panel is one pair of logarithmic axes.
type Panel struct {
	X      Axis
	YLabel string
	Series []Series
}

// Axis is what X counts.
type Axis int

// Axes.
const (
	Bytes  Axis = iota // of a message
	Tokens             // of each rank
)

// Series is one line. Kind tells how it is drawn.
type Series struct {
	Name   string
	Kind   Kind
	Points []Point
}

// Point is one value.
type Point struct{ X, Y float64 }

// Kind is the role of a series.
type Kind int

const (
	Main  Kind = iota // a median, a bandwidth or a rate of ours
	Tail              // the 99th percentile that belongs to the Main before it
	Paper             // a published figure, for comparison
)

// ChartOptions choose what stands beside our own figures.
type ChartOptions struct {
	// Paper adds the published round trips of small messages. It applies to pingpong only.
	Paper bool
}

// NewChart arranges a result's rows as lines: a panel each for latency, bandwidth and rate where there are figures.
// X is the size of a message, or the tokens of ll and ht; rows with 0 of them have no place on a logarithmic axis and are
// left out. Our series carry the words
// "no network" where their bytes crossed none.
func NewChart(r Result, o ChartOptions) (Chart, error) {
	c := Chart{Title: "doorbell bench " + r.Bench, Subtitle: r.Host.CPU, Notes: r.Notes()}
	if r.Host.Date != "" {
		c.Subtitle = strings.TrimPrefix(c.Subtitle+", "+r.Host.Date, ", ")
	}
	latency := Panel{YLabel: "latency [µs]"}
	if r.Bench == "pingpong" {
		latency.YLabel = "round trip [µs]"
	}
	bandwidth, rate := Panel{YLabel: "bandwidth [GB/s]"}, Panel{YLabel: "rate [million operations/s]"}
	for _, g := range groupRows(r) {
		latency.add(g.name+", p50", Main, g.rows, func(x Row) float64 { return x.P50US })
		latency.add(g.name+", p99", Tail, g.rows, func(x Row) float64 { return x.P99US })
		bandwidth.add(g.name, Main, g.rows, func(x Row) float64 { return x.GBps })
		rate.add(g.name, Main, g.rows, func(x Row) float64 { return x.Mops })
	}
	if o.Paper && r.Bench == "pingpong" {
		for _, p := range PublishedFor("pingpong") {
			s := Series{Name: fmt.Sprintf("%s, %.1f µs (published)", p.System, p.US), Kind: Paper}
			for b := 4.0; b <= 128; b *= 2 { // the same at all of these sizes
				s.Points = append(s.Points, Point{b, p.US})
			}
			latency.Series = append(latency.Series, s)
		}
		c.Notes = append(c.Notes, "published: "+sources[paperPingPong])
	}
	if r.Bench != "rate" && len(latency.Series)+len(bandwidth.Series) > 0 {
		rate.Series = nil // it says the same once more
	}
	for _, p := range []Panel{latency, bandwidth, rate} {
		if slices.ContainsFunc(r.Rows, isMoE) {
			p.X = Tokens
		}
		if len(p.Series) > 0 {
			c.Panels = append(c.Panels, p)
		}
	}
	if len(c.Panels) == 0 {
		return c, fmt.Errorf("plot %s: none of %d rows has a size and a figure", r.Bench, len(r.Rows))
	}
	if !r.Verified || r.Error != "" {
		c.Notes = append(c.Notes, "NOT VERIFIED: "+strings.TrimPrefix(r.verdict(), "verified: NO: "))
	}
	return c, nil
}

func (p *Panel) add(name string, kind Kind, rows []Row, y func(Row) float64) {
	s := Series{Name: name, Kind: kind}
	for _, x := range rows {
		at := float64(x.Bytes)
		if x.MoE != nil {
			at = float64(x.MoE.Tokens)
		}
		if v := figure(y(x)); at > 0 && v > 0 {
			s.Points = append(s.Points, Point{at, v})
		}
	}
	if len(s.Points) > 0 {
		p.Series = append(p.Series, s)
	}
}

type rowGroup struct {
	name string
	rows []Row
}

// groupRows splits rows into lines of a chart: rows that differ in anything but size and figures, in order of appearance.
func groupRows(r Result) []rowGroup {
	var groups []rowGroup
	for _, x := range r.Rows {
		name := seriesName(r, x)
		found := false
		for i := range groups {
			if groups[i].name == name {
				groups[i].rows = append(groups[i].rows, x)
				found = true
			}
		}
		if !found {
			groups = append(groups, rowGroup{name, []Row{x}})
		}
	}
	return groups
}

func seriesName(r Result, x Row) string {
	var p []string
	if x.Label != "" {
		p = append(p, x.Label)
	}
	where := fmt.Sprintf("%d ranks", x.Ranks)
	s := x.standIns(r.Host.Hosts)
	if x.Nodes > 1 {
		where += fmt.Sprintf(" on %d nodes", x.Nodes)
	}
	if s.nodes {
		where += " (emulated)"
	}
	if s.gpus {
		where += fmt.Sprintf(" sharing %d GPU (emulated)", x.GPUs)
	}
	nic := x.NIC
	if s.nic {
		nic += " (emulated NIC)"
	}
	for _, s := range []string{x.Backend, nic, x.Net, x.Device, where} {
		if s != "" {
			p = append(p, s)
		}
	}
	if x.Progress != "" {
		p = append(p, "progress="+x.Progress)
	}
	name := strings.Join(p, ", ")
	if r.NoNetwork(x) {
		name += " (no network)"
	}
	return "Doorbell " + name
}
