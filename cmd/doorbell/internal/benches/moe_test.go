// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/routing"
	"github.com/doorbell-net/doorbell/netplugin"
)

// counted wraps a network and counts the bytes that ranks put to other ranks.
type counted struct {
	netplugin.Plugin
	bytes *atomic.Int64
}

var crossed atomic.Int64

func init() { netplugin.RegisterWrapper(counter{}) }

type counter struct{}

func (counter) Name() string { return "counted" }

func (counter) Wrap(p netplugin.Plugin, _ netplugin.Faults) (netplugin.Plugin, error) {
	return counted{p, &crossed}, nil
}

func (c counted) Name() string { return "counted+" + c.Plugin.Name() }

func (c counted) Open(cfg netplugin.Config) (netplugin.Endpoint, error) {
	e, err := c.Plugin.Open(cfg)
	return countedEndpoint{e, c.bytes, int32(cfg.Rank)}, err
}

type countedEndpoint struct {
	netplugin.Endpoint
	bytes *atomic.Int64
	rank  int32
}

func (e countedEndpoint) Post(ops []netplugin.Op) int {
	n := e.Endpoint.Post(ops)
	for i := range ops[:n] {
		if ops[i].Kind == netplugin.Put && ops[i].Peer != e.rank {
			e.bytes.Add(int64(ops[i].Len()))
		}
	}
	return n
}

// A row's network bytes are those that the network was given.
func TestNetworkBytesAreThoseThatCross(t *testing.T) {
	for _, c := range []struct {
		name    string
		perRank bool
		ring    int
		lsa     bool
	}{
		{"ll", false, 0, false}, {"ll", false, 0, true}, {"ll", true, 0, false}, {"ll", true, 0, true},
		{"ht", false, 0, false}, {"ht", false, 0, true}, {"ht", false, 2, false}, {"ht", false, 2, true},
	} {
		cfg := small(c.lsa)
		cfg.PerRank, cfg.Ring, cfg.Iters, cfg.Warmup = c.perRank, c.ring, 4, 1
		crossed.Store(0)
		r, err := runAll(t, c.name, 4, doorbell.Options{Net: "counted+shm", RanksPerNode: 2}, cfg)
		if err != nil || !r.Verified {
			t.Fatalf("%+v: %v %q %v", c, r.Verified, r.Error, err)
		}
		// Steps are 2 checked ones, 1 to warm up, the timed ones, 1 of stages, and one that is checked at the end.
		steps := 5 + r.Rows[0].Iters
		want := int64(0)
		for _, x := range r.Rows {
			want += steps * x.MoE.NetworkBytes
			if stored := x.MoE.LSABytes > 0; stored != c.lsa {
				t.Errorf("%+v: %d bytes stored by a %s", c, x.MoE.LSABytes, x.Label)
			}
		}
		if got := crossed.Load(); got != want || want == 0 {
			t.Errorf("%+v: %d bytes crossed in %d steps, the rows say %d", c, got, steps, want)
		}
	}
}

// The published accounting, and what we send in truth, at the published shape.
func TestBytesOfThePaper(t *testing.T) {
	for _, c := range []struct {
		format           moe.Format
		paper, sent, row int64
	}{{moe.BF16, 14336 + 16, 14352 + 16, 14336}, {moe.FP8, 7168 + 4*56 + 16, 7408 + 16, 7392}} {
		r, err := runAll(t, "ll", 2, doorbell.Options{}, Config{Tokens: []int{1}, Hidden: 7168, TopK: 8, Experts: 16, LSA: true, Iters: 1, Warmup: 1, Seed: 3, Format: c.format})
		if err != nil || !r.Verified {
			t.Fatalf("%v %q %v", r.Verified, r.Error, err)
		}
		d, combine := r.Rows[0], r.Rows[1]
		if d.Bytes != c.paper || d.MoE.PaperBytes != 16*c.paper || d.MoE.MessageBytes != c.sent || d.MoE.OwnBytes+d.MoE.LSABytes != 16*c.sent {
			t.Errorf("%v: dispatch counts %d B a selection, %d in all, and sends %d B a message; want %d, %d and %d", c.format, d.Bytes, d.MoE.PaperBytes, d.MoE.MessageBytes, c.paper, 16*c.paper, c.sent)
		}
		if combine.Bytes != 14336 || combine.MoE.PaperBytes != 16*14336 || combine.MoE.MessageBytes != 14336 {
			t.Errorf("%v: combine counts %d B a selection and sends %d, want 14336", c.format, combine.Bytes, combine.MoE.MessageBytes)
		}
		if pack := d.MoE.Copies[1]; pack.Bytes != c.row || pack.Times != 16 {
			t.Errorf("%v: %d rows of %d B are packed, want 16 of %d", c.format, pack.Times, pack.Bytes, c.row)
		}
	}
}

// The same of ht. Each rank has a token for ranks 0 and 1, and one for 1 and 3: 4 rows, on 2 nodes for 3 times a node.
func TestBytesOfThePaperHT(t *testing.T) {
	file := filepath.Join(t.TempDir(), "routing")
	g := &routing.Routing{Ranks: 4, Experts: 4, TopK: 2, Idx: make([][]int32, 4), Weights: make([][]float32, 4)}
	for r := range g.Ranks {
		g.Idx[r], g.Weights[r] = []int32{1, 0, 3, 1, -1, -1}, make([]float32, 6)
	}
	if err := routing.WriteFile(file, g); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		format     moe.Format
		perNode    int
		paper, row int64 // of a dispatched row: as published figures count it, and as it is sent
		counted    int64 // rows
		messages   int64
	}{
		{moe.BF16, 2, 14336, 14336, 12, 6},
		{moe.FP8, 2, 7392, 7392, 12, 6},
		{moe.FP8UE8M0, 4, 7392, 7168 + 64, 16, 0},
	} {
		cfg := Config{Routing: file, Hidden: 7168, TopK: 2, Experts: 4, LSA: true, Iters: 1, Warmup: 1, Seed: 3, Format: c.format}
		r, err := runAll(t, "ht", 4, doorbell.Options{RanksPerNode: c.perNode}, cfg)
		if err != nil || !r.Verified {
			t.Fatalf("%+v: %v %q %v", c, r.Verified, r.Error, err)
		}
		// Beside a row stand 16 bytes and its selections and weights; beside an output its weights. A message has 16 bytes more
		// and where its row goes, rounded up to 16, an answer what an output has, rounded up.
		for i, want := range []struct{ paper, row, message int64 }{{c.paper, c.row + 32, c.row + 48}, {c.paper, c.row + 32, c.row + 48}, {14336, 14336 + 8, 14336 + 16}} {
			x, m := r.Rows[i], r.Rows[i].MoE
			rdma := c.counted * want.paper
			if c.perNode == 4 {
				rdma, want.message = 0, 0
			}
			if x.Bytes != want.paper || m.PaperBytes != c.counted*want.paper || m.NVLinkBytes != 16*want.paper || m.RDMABytes != rdma {
				t.Errorf("%+v, %s: counts %d B, %d in all, NVLink %d, RDMA %d", c, x.Label, x.Bytes, m.PaperBytes, m.NVLinkBytes, m.RDMABytes)
			}
			if m.Selections != 16 || m.Rows != 16 || m.RowBytes != want.row || m.Messages != c.messages || m.MessageBytes != want.message {
				t.Errorf("%+v, %s: %d rows of %d B, %d messages of %d B, of %d selections", c, x.Label, m.Rows, m.RowBytes, m.Messages, m.MessageBytes, m.Selections)
			}
		}
		for _, x := range r.Rows {
			if d := x.MoE; (d.LayoutUS > 0 && d.SendUS > 0 && d.WaitUS > 0) != (x.Label != "combine") {
				t.Errorf("%+v: stages of %s %+v", c, x.Label, d)
			}
		}
	}
}

func TestRowsSayWhatTheyAre(t *testing.T) {
	cfg := small(true)
	cfg.Tokens, cfg.Gating = []int{1, 4}, routing.Pattern{Kind: routing.HotRank, Hot: 1, Share: 1}
	cfg.Iters = 4
	for name, labels := range operations {
		r, err := runAll(t, name, 3, doorbell.Options{}, cfg)
		if err != nil || !r.Verified || len(r.Rows) != 2*len(labels) {
			t.Fatalf("%s: %v %q %d rows %v", name, r.Verified, r.Error, len(r.Rows), err)
		}
		for i, x := range r.Rows {
			m := x.MoE
			if x.Label != labels[i%len(labels)] || x.CheckedBytes == 0 || m.Tokens != cfg.Tokens[i/len(labels)] || m.Selections != int64(9*m.Tokens) || m.Machine == "" || len(m.PerRank) != 3 || x.MeanUS < x.MinUS || m.CopyRatio == 0 {
				t.Errorf("%s, row %d: %+v, %+v", name, i, x, m)
			}
			if name == "ll" && (m.SendUS == 0 || m.UnpackUS == 0) {
				t.Errorf("%s, row %d: stages %+v", name, i, m)
			}
			own, lsa := m.OwnBytes, m.LSABytes
			if name == "ht" && x.Label == "dispatch" { // besides the rows each rank tells each its layout
				own, lsa = own-3*48, lsa-6*48
			}
			if own*2 != lsa || own == 0 { // all go to rank 1
				t.Errorf("%s, row %d: %d bytes to the own rank, %d to others", name, i, own, lsa)
			}
		}
	}
}

// Layers are replayed in turn, each with the tokens that it has; --tokens takes the first ones.
func TestLayersAreReplayed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "routing")
	var layers []*routing.Routing
	for i, tokens := range [][]int{{3, 0}, {5, 7}, {0, 1}} {
		g, err := routing.Generate(routing.Options{Seed: uint64(i), Ranks: 2, Experts: 6, TopK: 2, TokensPerRank: tokens, DropEntries: 0.2})
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, g)
	}
	if err := routing.WriteFile(file, layers...); err != nil {
		t.Fatal(err)
	}
	for _, name := range forms {
		cfg := small(true)
		cfg.Routing, cfg.Tokens, cfg.Iters = file, nil, 6
		r, err := runAll(t, name, 2, doorbell.Options{}, cfg)
		if err != nil || !r.Verified || r.Rows[0].MoE.Tokens != 7 || r.Rows[0].MoE.Layers != 3 || r.Rows[0].Iters%3 != 0 {
			t.Fatalf("%s: verified %v %q %v, row %+v", name, r.Verified, r.Error, err, r.Rows)
		}
		cfg.Tokens = []int{2}
		if r, err = runAll(t, name, 2, doorbell.Options{}, cfg); err != nil || !r.Verified || r.Rows[0].MoE.Tokens != 2 {
			t.Fatalf("%s: verified %v %q %v, row %+v", name, r.Verified, r.Error, err, r.Rows)
		}
		cfg.Routing, cfg.Experts = filepath.Join("..", "..", "..", "..", "moe", "routing", "testdata", "numpy", "i8.npy"), 8
		if r, err = runAll(t, name, 2, doorbell.Options{}, cfg); err != nil || !r.Verified || r.Rows[0].MoE.Layers != 2 {
			t.Fatalf("%s, numpy's: verified %v %q %v", name, r.Verified, r.Error, err)
		}
		cfg.Experts = 7
		if _, err = runAll(t, name, 2, doorbell.Options{Timeout: 2 * time.Second}, cfg); err == nil || !strings.Contains(err.Error(), "layer 0, rank 0, token 0, selection 0: expert 7, accepted -1..6") {
			t.Errorf("%s, an expert too many: %v", name, err)
		}
	}
}
