// SPDX-License-Identifier: Apache-2.0

// Package report holds the results of benchmarks and shows them: as one JSON object, as a table, as a chart.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Row is one measured point. Its JSON names are a contract with scripts.
//
// Always written: bytes, ranks, nodes, net, backend, device, progress, emulated, iters, checked_bytes.
// Left out when zero, that is when a bench has no such figure: label, nic, gpus, mean_us, p50_us, p99_us, min_us, max_us (bw and
// rate time no single operation), GBps (10^9 bytes a second, payload only), Mops (10^6 operations a second), moe and per_put.
// Figures are written with six significant digits.
type Row struct {
	// Label tells rows of one bench apart, as dispatch and combine of ll; empty where there is one kind.
	Label    string
	Bytes    int64  // payload of one operation
	Ranks    int    // ranks in the world
	Nodes    int    // nodes, virtual ones included
	Net      string // network plugin, or lsa where ranks stored into each other's windows
	Backend  string // proxy, gdaki, or lsa
	NIC      string // what kernels drove, with gdaki; softnic is an emulated one
	Device   string // soft or cuda
	GPUs     int    // how many GPUs all ranks ran on together, 0 for none
	Progress string // thread or assisted: the mode that was measured
	// Emulated says that something stood in for hardware: a software device or NIC, virtual nodes, or a GPU for several. That there
	// was no network between the ranks is said apart (Result.NoNetwork): where GPUs of one host store to each other there is none.
	Emulated     bool
	Iters        int64   // timed operations
	MeanUS       float64 // mean, microseconds
	P50US        float64 // median, microseconds
	P99US        float64 // 99th percentile, microseconds
	MinUS        float64 // minimum, microseconds
	MaxUS        float64 // longest single operation, microseconds
	GBps         float64
	Mops         float64
	CheckedBytes int64   // bytes compared with values that the receiver computed by itself
	MoE          *MoE    // ll and ht: what was moved, and how
	PerPut       *PerPut // post, where kernels drive a NIC
}

// PerPut is what a put takes of a NIC that kernels drive.
type PerPut struct {
	Doorbells float64 `json:"doorbells"` // stores to its register
	WQEBytes  float64 `json:"wqe_bytes"` // written into send queues
	Stores    float64 `json:"stores"`    // of words that it reads: WQEs, doorbell records and registers
}

// standIns are what in a row stands for hardware that was not there.
type standIns struct{ nodes, device, nic, gpus bool }

func (r Row) standIns(hosts int) standIns {
	return standIns{nodes: r.Nodes > 1 && hosts <= 1, device: r.Device == "soft", nic: r.NIC == softNIC, gpus: r.GPUs > 0 && r.GPUs < r.Ranks}
}

// StandsIn says whether anything in the row does, measured on so many hosts (Host.Hosts).
func (r Row) StandsIn(hosts int) bool { return r.standIns(hosts) != standIns{} }

func (r Row) perPut() PerPut {
	if r.PerPut == nil {
		return PerPut{}
	}
	return *r.PerPut
}

func (p *PerPut) round() *PerPut {
	if p == nil {
		return nil
	}
	return &PerPut{figure(p.Doorbells), figure(p.WQEBytes), figure(p.Stores)}
}

type rowJSON struct {
	Label        string  `json:"label,omitempty"`
	Bytes        int64   `json:"bytes"`
	Ranks        int     `json:"ranks"`
	Nodes        int     `json:"nodes"`
	Net          string  `json:"net"`
	Backend      string  `json:"backend"`
	NIC          string  `json:"nic,omitempty"`
	Device       string  `json:"device"`
	GPUs         int     `json:"gpus,omitempty"`
	Progress     string  `json:"progress"`
	Emulated     bool    `json:"emulated"`
	Iters        int64   `json:"iters"`
	MeanUS       float64 `json:"mean_us,omitempty"`
	P50US        float64 `json:"p50_us,omitempty"`
	P99US        float64 `json:"p99_us,omitempty"`
	MinUS        float64 `json:"min_us,omitempty"`
	MaxUS        float64 `json:"max_us,omitempty"`
	GBps         float64 `json:"GBps,omitempty"`
	Mops         float64 `json:"Mops,omitempty"`
	CheckedBytes int64   `json:"checked_bytes"`
	MoE          *MoE    `json:"moe,omitempty"`
	PerPut       *PerPut `json:"per_put,omitempty"`
}

// MarshalJSON writes the row with the names of the contract. A figure that is not a number is left out.
func (r Row) MarshalJSON() ([]byte, error) {
	j := rowJSON(r)
	for _, f := range []*float64{&j.MeanUS, &j.P50US, &j.P99US, &j.MinUS, &j.MaxUS, &j.GBps, &j.Mops} {
		*f = figure(*f)
	}
	j.MoE, j.PerPut = j.MoE.round(), j.PerPut.round()
	return json.Marshal(j)
}

// UnmarshalJSON is the inverse of MarshalJSON, up to rounding.
func (r *Row) UnmarshalJSON(b []byte) error {
	var j rowJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*r = Row(j)
	return nil
}

// figure rounds to six significant digits; what is no finite number becomes 0, which JSON leaves out.
func figure(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	if err != nil {
		return 0
	}
	return r
}

// Result is what one bench run says.
type Result struct {
	Bench    string
	Config   any // the settings as the user gave them; a JSON object
	Host     Host
	Rows     []Row
	Verified bool   // every byte, signal and counter that was checked was right
	Error    string // why it is not verified; empty otherwise
}

type resultJSON struct {
	Bench    string          `json:"bench"`
	Config   json.RawMessage `json:"config"`
	Host     Host            `json:"host"`
	Rows     []Row           `json:"rows"`
	Verified bool            `json:"verified"`
	Error    string          `json:"error,omitempty"`
}

// MarshalJSON writes {"bench","config","host","rows","verified"} and, only when there is one, "error".
// A result with an error is never written as verified, nor is one without rows.
func (r Result) MarshalJSON() ([]byte, error) {
	config := json.RawMessage("{}")
	if r.Config != nil {
		b, err := json.Marshal(r.Config)
		if err != nil {
			return nil, fmt.Errorf("encode config: %w", err)
		}
		if config = b; string(b) == "null" {
			config = json.RawMessage("{}")
		}
	}
	rows := r.Rows
	if rows == nil {
		rows = []Row{}
	}
	return json.Marshal(resultJSON{
		Bench: r.Bench, Config: config, Host: r.Host, Rows: rows,
		Verified: r.Verified && r.Error == "" && len(rows) > 0, Error: r.Error,
	})
}

// WriteJSON writes the result as one JSON object on one line, so that files of results are JSON lines.
func (r Result) WriteJSON(w io.Writer) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// MaxJSON is the size of the largest encoded result that Decode accepts, in bytes.
const MaxJSON = 16 << 20

// Decode reads one result as another process wrote it. It refuses more than MaxJSON bytes, anything behind the object,
// and one that claims to be verified beside an error or without a row. Config becomes a json.RawMessage.
func Decode(b []byte) (Result, error) {
	if len(b) > MaxJSON {
		return Result{}, fmt.Errorf("decode result: %d bytes, at most %d are accepted", len(b), MaxJSON)
	}
	var j resultJSON
	dec := json.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&j); err != nil {
		return Result{}, fmt.Errorf("decode result: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Result{}, fmt.Errorf("decode result: more than one JSON value in %d bytes", len(b))
	}
	if j.Bench == "" {
		return Result{}, errors.New("decode result: no \"bench\" in it")
	}
	if j.Verified && (j.Error != "" || len(j.Rows) == 0) {
		return Result{}, fmt.Errorf("decode result: verified with %d rows and error %q", len(j.Rows), j.Error)
	}
	r := Result{Bench: j.Bench, Host: j.Host, Rows: j.Rows, Verified: j.Verified, Error: j.Error}
	if len(j.Config) > 0 {
		r.Config = j.Config
	}
	return r, nil
}

// NoNetwork says that a row's bytes crossed no network: they went through memory, or through TCP inside one host. What a NIC of
// hardware sends does, to its own port too.
func (r Result) NoNetwork(row Row) bool {
	switch innermost(row.Net) {
	case "mlx5":
		return false
	case "tcp":
		return r.Host.Hosts <= 1
	}
	return true
}

// innermost is the plugin within what wraps it: fault+shm is shm that misbehaves.
func innermost(net string) string { return net[strings.LastIndex(net, "+")+1:] }
