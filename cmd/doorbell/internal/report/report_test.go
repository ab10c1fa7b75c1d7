// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; run with -update if that is meant. got:\n%s\nwant:\n%s", path, got, want)
	}
}

// mixed has rows that differ in more than size, with and without figures of each kind.
func mixed() Result {
	r := sample()
	r.Bench = "ll"
	one := r.Rows[0]
	one.Label, one.Bytes, one.GBps = "dispatch", 14336, 6.25
	two := one
	two.Label, two.Progress, two.Nodes, two.P99US = "combine", "thread", 1, 0
	three := Row{Label: "rate", Bytes: 8, Ranks: 2, Nodes: 1, Net: "tcp", Backend: "proxy", Device: "cuda", Progress: "thread", Mops: 8.123456789}
	r.Rows = []Row{one, two, three}
	return r
}

// experts has the rows of ll at two numbers of tokens, with more ranks than a table shows.
func experts() Result {
	r := sample()
	r.Bench, r.Rows = "ll", nil
	for _, tokens := range []int{1, 128} {
		m := MoE{
			Machine: "2 cores of Example CPU", Tokens: tokens, Hidden: 2048, TopK: 8, Experts: 256, Layers: 3, DType: "fp8", Wire: "expert",
			Selections: 128 * int64(tokens), PaperBytes: 128 * int64(tokens) * 7408, MessageBytes: 7424, Messages: 128 * int64(tokens), Signals: 4096,
			OwnBytes: 8 * int64(tokens) * 7424, LSABytes: 56 * int64(tokens) * 7424, NetworkBytes: 64 * int64(tokens) * 7424,
			SendUS: 10.0001234, WaitUS: 5, UnpackUS: 2.5, Copies: []Copy{{"put", 128 * int64(tokens), 7424, 3.25}, {"pack", 128 * int64(tokens), 7392, 3}}, CopyRatio: 2.8,
		}
		for rank := range 18 {
			m.PerRank = append(m.PerRank, RankTimes{rank, 17, 15, 16.5, 30, 31.00001234})
		}
		r.Rows = append(r.Rows, Row{
			Label: "dispatch", Bytes: 7408, Ranks: 16, Nodes: 2, Net: "lsa+shm", Backend: "proxy", Device: "soft", Progress: "assisted", Emulated: true,
			Iters: 100, MeanUS: 17.5, P50US: 16.5, P99US: 30, MinUS: 15, MaxUS: 31, GBps: 3.5, CheckedBytes: 1 << 20, MoE: &m,
		})
	}
	return r
}

// rails has the rows of ht on two nodes, and of a dispatch on one, both again.
func rails() Result {
	r := experts()
	r.Bench = "ht"
	row := r.Rows[1]
	two := MoE{
		Machine: "2 cores of Example CPU", Tokens: 4096, Hidden: 7168, TopK: 8, Experts: 256, Layers: 1, DType: "fp8", Wire: "node",
		Selections: 524288, PaperBytes: 7392 * 130547, RDMABytes: 7392 * 130547, NVLinkBytes: 7392 * 346752,
		MessageBytes: 7504, Messages: 65274, RowBytes: 7472, Rows: 346752, OwnBytes: 21672 * 7472, LSABytes: 325080 * 7472, NetworkBytes: 65274 * 7504,
		LayoutUS: 10.0001234, SendUS: 5, WaitUS: 2.5, Copies: []Copy{{"place", 346752, 7392, 3.25}, {"stage", 65274, 7392, 1}, {"put", 65274, 7392, 1}}, CopyRatio: 3.33,
	}
	row.Label, row.Bytes, row.MoE = "dispatch again", 7392, &two
	r.Rows = []Row{row}
	one := two
	one.Wire, one.PaperBytes, one.RDMABytes, one.MessageBytes, one.Messages, one.NetworkBytes, one.Copies = "rank", one.NVLinkBytes, 0, 0, 0, 0, one.Copies[:1]
	row.Ranks, row.Nodes, row.Net, row.Backend, row.MoE = 8, 1, "lsa", "lsa", &one
	r.Rows = append(r.Rows, row)
	back := two // combine
	back.Copies, back.LayoutUS, back.SendUS, back.WaitUS = []Copy{{"read", 346752, 14336, 6.5}, {"put", 65274, 14336, 2}}, 0, 0, 0
	row = r.Rows[0]
	row.Label, row.Bytes, row.MoE = "combine", 14336, &back
	r.Rows = append(r.Rows, row)
	return r
}

func TestGolden(t *testing.T) {
	failed := sample()
	failed.Rows, failed.Error = failed.Rows[:1], "round 3 from rank 1: byte 5 is 0x41, want 0x40"
	for name, r := range map[string]Result{
		"sample": sample(), "mixed": mixed(), "experts": experts(), "rails": rails(), "failed": failed, "empty": {Bench: "bw", Verified: true, Error: "no peer"},
	} {
		var table, object bytes.Buffer
		if err := r.WriteTable(&table, name == "experts" || name == "rails"); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".table", table.String())
		if err := r.WriteJSON(&object); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".json", object.String())
	}
}

// What was published stands beside rows of its shape, and no others.
func TestPublishedStandsBesideItsShapeAlone(t *testing.T) {
	rows := rails().Rows
	if got := besideRow("ht", rows[0]); !strings.HasPrefix(got, "GIN 84.4 GB/s [5]") {
		t.Errorf("16 ranks on 2 nodes: %q", got)
	}
	for name, change := range map[string]func(x *Row, m *MoE){
		"tokens": func(_ *Row, m *MoE) { m.Tokens = 128 }, "top-k": func(_ *Row, m *MoE) { m.TopK = 4 },
		"ranks": func(x *Row, _ *MoE) { x.Ranks = 12 }, "nodes": func(x *Row, _ *MoE) { x.Nodes = 4 },
	} {
		x, m := rows[0], *rows[0].MoE
		change(&x, &m)
		x.MoE = &m
		if got := besideRow("ht", x); got != "" {
			t.Errorf("another number of %s, and yet %q", name, got)
		}
	}
}

func TestJSONNames(t *testing.T) {
	full, err := json.Marshal(Row{Bytes: 1, P50US: 1, P99US: 1, MinUS: 1, MaxUS: 1, MeanUS: 1, GBps: 1, Mops: 1, Label: "x", MoE: &MoE{}, PerPut: &PerPut{}})
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(full, &m); err != nil {
		t.Fatal(err)
	}
	want := strings.Fields("label bytes ranks nodes net backend device progress emulated iters mean_us p50_us p99_us min_us max_us GBps Mops checked_bytes moe per_put")
	if len(m) != len(want) {
		t.Errorf("row has %d names, want %d: %s", len(m), len(want), full)
	}
	for _, k := range want {
		if _, ok := m[k]; !ok {
			t.Errorf("row has no %q: %s", k, full)
		}
	}
}

func TestJSONNeverClaimsTooMuch(t *testing.T) {
	r := sample()
	r.Rows[0].P50US, r.Rows[0].GBps = math.NaN(), math.Inf(1)
	r.Error = "rank 1 is lost"
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if back.Verified || back.Error != r.Error || back.Rows[0].P50US != 0 || back.Rows[0].GBps != 0 {
		t.Errorf("verified %v, error %q, row %+v", back.Verified, back.Error, back.Rows[0])
	}
	if b, _ := json.Marshal(Result{Bench: "bw", Verified: true}); !bytes.Contains(b, []byte(`"verified":false`)) {
		t.Errorf("no rows, and yet %s", b)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, bad := range []string{
		"", "{}", "null", `{"bench":"bw"} {}`, `{"bench":"bw","verified":true,"rows":[]}`, `{"bench":"bw"}x`,
		`{"bench":"bw","verified":true,"rows":[{}],"error":"x"}`, strings.Repeat(" ", MaxJSON+1),
	} {
		if r, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%.40q decoded to %+v", bad, r)
		}
	}
}

func TestWireKeepsLabels(t *testing.T) {
	b, err := json.Marshal(mixed())
	if err != nil {
		t.Fatal(err)
	}
	r, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range mixed().Rows {
		if r.Rows[i].Label != want.Label {
			t.Errorf("row %d is labelled %q, want %q", i, r.Rows[i].Label, want.Label)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range []Result{sample(), mixed(), {Bench: "x", Error: "y"}} {
		var b bytes.Buffer
		if err := r.WriteJSON(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		r2, err := Decode(again)
		if err != nil {
			t.Fatalf("decode %s: %v", again, err)
		}
		if r.Verified != r2.Verified || r.Error != r2.Error || len(r.Rows) != len(r2.Rows) {
			t.Fatalf("%+v became %+v", r, r2)
		}
		var sink bytes.Buffer
		if err := r.WriteTable(&sink, true); err != nil {
			t.Fatal(err)
		}
	})
}

func TestNoNetwork(t *testing.T) {
	for _, c := range []struct {
		net   string
		hosts int
		want  bool
	}{{"shm", 1, true}, {"lsa", 1, true}, {"fault+shm", 1, true}, {"tcp", 1, true}, {"fault+tcp", 2, false}, {"tcp", 2, false}, {"mlx5", 1, false}} {
		if got := (Result{Host: Host{Hosts: c.hosts}}).NoNetwork(Row{Net: c.net}); got != c.want {
			t.Errorf("%s over %d hosts: no network is %v, want %v", c.net, c.hosts, got, c.want)
		}
		notes := strings.Join(Result{Host: Host{Hosts: c.hosts}, Rows: []Row{{Net: c.net, Nodes: 2}}}.Notes(), "\n")
		tcp := strings.HasSuffix(c.net, "tcp")
		if strings.Contains(notes, "over no wire") != (c.want && tcp) || strings.Contains(notes, "figures of memory") != (c.want && !tcp) || strings.Contains(notes, "emulated nodes") != (c.hosts == 1) {
			t.Errorf("%s over %d hosts: notes %q", c.net, c.hosts, notes)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 4 << 20: "4 MiB",
		math.MaxInt64: "8 EiB", -5: "-5 B"} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %q, want %q", n, got, want)
		}
	}
}

// dump writes a chart's data for a golden file.
func (c Chart) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "title %s\nsubtitle %s\n", c.Title, c.Subtitle)
	for _, p := range c.Panels {
		fmt.Fprintf(&b, "panel %s\n", p.YLabel)
		for _, s := range p.Series {
			fmt.Fprintf(&b, "  series kind=%d %s\n   ", s.Kind, s.Name)
			for _, pt := range s.Points {
				fmt.Fprintf(&b, " %g:%g", pt.X, pt.Y)
			}
			b.WriteByte('\n')
		}
	}
	for _, n := range c.Notes {
		fmt.Fprintf(&b, "note %s\n", n)
	}
	return b.String()
}

func TestChartGolden(t *testing.T) {
	rate := mixed()
	rate.Bench, rate.Rows = "rate", rate.Rows[2:]
	for name, r := range map[string]Result{"sample": sample(), "mixed": mixed(), "experts": experts(), "rails": rails(), "rate": rate} {
		c, err := NewChart(r, ChartOptions{Paper: true})
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name+".chart", c.dump())
	}
}

func TestWritePlot(t *testing.T) {
	dir := t.TempDir()
	small := sample()
	small.Rows, small.Error = small.Rows[:1], strings.Repeat("long & <b>bad</b> ", 40)
	for i, r := range []Result{sample(), mixed(), small, experts()} {
		for ext, head := range map[string]string{".svg": "<?xml", ".png": "\x89PNG", ".html": "<!DOCTYPE html>"} {
			if ext == ".png" && i < 2 {
				continue // one is enough: under -race a picture takes seconds
			}
			name := filepath.Join(dir, fmt.Sprint(i)+ext)
			if err := WritePlot(name, r, ChartOptions{Paper: true}); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(b, []byte(head)) {
				t.Errorf("%s begins with %.20q", name, b)
			}
			if ext == ".png" {
				continue
			}
			if !bytes.Contains(b, []byte("(no network)")) {
				t.Errorf("%s does not say \"no network\"", name)
			}
			if bytes.Contains(b, []byte("<b>bad")) {
				t.Errorf("%s has text that was not escaped", name)
			}
			if bytes.Contains(b, []byte("src=")) || bytes.Contains(b, []byte("url(http")) || bytes.Contains(b, []byte("<script")) {
				t.Errorf("%s is not self-contained", name)
			}
		}
	}
	for _, bad := range []string{"x.pdf", "x", "x.SVG", ".png/x.jpg"} {
		if err := WritePlot(filepath.Join(dir, bad), sample(), ChartOptions{}); err == nil || !strings.Contains(err.Error(), ".svg, .png or .html") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if err := CheckPlotName(filepath.Join(dir, "none", "x.svg")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing folder: %v", err)
	}
	if err := WritePlot(filepath.Join(dir, "e.svg"), Result{Bench: "bw"}, ChartOptions{}); err == nil {
		t.Error("a result without rows was plotted")
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      string
	}{{3, 5 << 20, "4 B,16 B,64 B,256 B,1 KiB,4 KiB,16 KiB,64 KiB,256 KiB,1 MiB,4 MiB"}, {2.6, 25, "4 B,8 B,16 B"}} {
		var got []string
		for _, k := range (powerTicks{Size}).Ticks(c.low, c.high) {
			if k.Label != "" {
				got = append(got, k.Label)
			}
		}
		if strings.Join(got, ",") != c.want {
			t.Errorf("ticks of %g..%g: %v, want %s", c.low, c.high, got, c.want)
		}
	}
}

func TestRowRoundTrip(t *testing.T) {
	for _, want := range mixed().Rows {
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Row
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		for _, f := range []*float64{&want.P50US, &want.P99US, &want.MinUS, &want.MaxUS, &want.GBps, &want.Mops} {
			*f = figure(*f)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	}
}

// What a put takes of a NIC stands in the table, beside rows that say nothing of it.
func TestPerPut(t *testing.T) {
	var table bytes.Buffer
	r := Result{Bench: "post", Rows: []Row{{Bytes: 8, PerPut: &PerPut{Doorbells: 1. / 16, WQEBytes: 128, Stores: 16.125}}, {Bytes: 16}}}
	if err := r.WriteTable(&table, false); err != nil {
		t.Fatal(err)
	}
	var lines [][]string
	for line := range strings.Lines(table.String()) {
		if f := strings.Fields(line); len(f) > 2 {
			lines = append(lines, f)
		}
	}
	for _, want := range []string{"doorbells/put WQE B/put stores/put", "0.062 128 16.1", "- - -"} {
		if !slices.ContainsFunc(lines, func(f []string) bool { return strings.Contains(strings.Join(f, " "), want) }) {
			t.Errorf("no line has %q:\n%s", want, table.String())
		}
	}
}

// What stands in for hardware is called so in table and chart, and nothing else is: two GPUs of a host that reach each other's
// memory are real, and use no network.
func TestStandIns(t *testing.T) {
	for _, c := range []struct {
		row  Row
		want string // in notes
	}{
		{Row{Device: "cuda", Net: "lsa", Ranks: 2, Nodes: 1, GPUs: 2}, ""},
		{Row{Device: "cuda", Net: "dma", Ranks: 2, Nodes: 1, GPUs: 2}, ""},
		{Row{Device: "cuda", Net: "ce", Ranks: 2, Nodes: 1, GPUs: 1}, "emulated GPUs"},
		{Row{Device: "cuda", Net: "dma", Ranks: 2, Nodes: 2, GPUs: 2}, "emulated nodes"},
		{Row{Device: "cuda", Net: "dma", NIC: softNIC, Ranks: 2, Nodes: 1, GPUs: 2}, "emulated NIC"},
		{Row{Device: "soft", Net: "shm", Ranks: 2, Nodes: 1}, "emulated device"},
	} {
		r := Result{Host: Host{Hosts: 1}, Rows: []Row{c.row}}
		notes, series := r.Notes(), seriesName(r, c.row)
		if c.row.StandsIn(1) != (c.want != "") || !strings.Contains(strings.Join(notes, "\n"), "no network") {
			t.Errorf("%+v: something stands in: %v; notes %q", c.row, c.row.StandsIn(1), notes)
		}
		if i := slices.IndexFunc(notes, func(n string) bool { return strings.HasPrefix(n, "emulated") }); (i < 0) != (c.want == "") || i >= 0 && !strings.HasPrefix(notes[i], c.want) {
			t.Errorf("%+v: notes %q, want %q", c.row, notes, c.want)
		}
		if c.row.Device == "cuda" && strings.Contains(series, "emulated") != (c.want != "") {
			t.Errorf("%+v: series %q", c.row, series)
		}
	}
}

// An emulated NIC is called so in table, JSON and chart, and nothing else is.
func TestEmulatedNIC(t *testing.T) {
	for _, c := range []struct {
		row  Row
		want bool
	}{{Row{Backend: "gdaki", NIC: "softnic"}, true}, {Row{Backend: "gdaki", NIC: "mlx5"}, false}, {Row{Backend: "proxy"}, false}} {
		r := Result{Rows: []Row{c.row}}
		notes, series := strings.Join(r.Notes(), "\n"), seriesName(r, c.row)
		if strings.Contains(notes, "emulated NIC") != c.want || strings.Contains(series, "emulated NIC") != c.want {
			t.Errorf("%+v: notes %q, series %q", c.row, notes, series)
		}
		b, err := json.Marshal(c.row)
		if err != nil || strings.Contains(string(b), `"nic":"`+c.row.NIC+`"`) != (c.row.NIC != "") {
			t.Errorf("%+v: %s, %v", c.row, b, err)
		}
	}
}
