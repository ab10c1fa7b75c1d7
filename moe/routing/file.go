// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// A recorded routing is JSON lines: for each layer of the model a header, then one line per token, tokens of rank 0 first.
//
//	{"format":"doorbell-routing","version":1,"layers":1,"ranks":2,"experts":4,"topk":2,"seed":7,"tokens":[1,2]}
//	{"idx":[3,0],"w":[0.75,0.25]}
//	{"idx":[1,-1],"w":[0.5,0.5]}
//	{"idx":[-1,-1],"w":[0.5,0.5]}
//
// tokens gives the count of each rank, and layers that of the headers, so that a file cut short is seen; it is 1 where it is
// missing. Layers agree in ranks, experts and topk. Weights are FP32, written with the digits that give the same bits back.

const (
	fileFormat  = "doorbell-routing"
	fileVersion = 1

	// maxLineBytes holds a header of MaxRanks counts and a token of MaxTopK selections with room to spare.
	maxLineBytes = 64 << 10
)

// ErrCorrupt is wrapped by the errors of Read for bytes that are no routing of a version it knows.
var ErrCorrupt = errors.New("corrupt routing")

type fileHeader struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Layers  int    `json:"layers,omitempty"`
	Ranks   int    `json:"ranks"`
	Experts int    `json:"experts"`
	TopK    int    `json:"topk"`
	Seed    uint64 `json:"seed"`
	Tokens  []int  `json:"tokens"`
}

type fileToken struct {
	Idx []int32   `json:"idx"`
	W   []float32 `json:"w"`
}

// Write writes the routings of a model's layers to w as JSON lines, after Validate of each.
func Write(w io.Writer, layers ...*Routing) error {
	if err := checkLayers(layers); err != nil {
		return fmt.Errorf("write routing: %w", err)
	}
	b := bufio.NewWriter(w) // it keeps the first error for Flush
	for _, g := range layers {
		h := fileHeader{Format: fileFormat, Version: fileVersion, Ranks: g.Ranks, Experts: g.Experts, TopK: g.TopK, Seed: g.Seed, Tokens: make([]int, g.Ranks)}
		if len(layers) > 1 {
			h.Layers = len(layers)
		}
		for r := range h.Tokens {
			h.Tokens[r] = g.Tokens(r)
		}
		line, err := json.Marshal(h)
		if err != nil {
			return fmt.Errorf("write routing: %w", err)
		}
		b.Write(append(line, '\n'))
		for r := range g.Idx {
			for i := 0; i < len(g.Idx[r]); i += g.TopK {
				line = appendToken(line[:0], g.Idx[r][i:i+g.TopK], g.Weights[r][i:i+g.TopK])
				b.Write(line)
			}
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write routing: %w", err)
	}
	return nil
}

func checkLayers(layers []*Routing) error {
	if len(layers) < 1 || len(layers) > MaxLayers {
		return fmt.Errorf("%d layers, accepted 1..%d", len(layers), MaxLayers)
	}
	for i, g := range layers {
		if err := g.Validate(); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
		if err := layers[0].sameShape(g); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return nil
}

// sameShape refuses another layer with other ranks, experts or selections.
func (g *Routing) sameShape(o *Routing) error {
	if o.Ranks != g.Ranks || o.Experts != g.Experts || o.TopK != g.TopK {
		return fmt.Errorf("%d ranks, %d experts, topk %d; layer 0 has %d, %d and %d", o.Ranks, o.Experts, o.TopK, g.Ranks, g.Experts, g.TopK)
	}
	return nil
}

func appendToken(b []byte, idx []int32, w []float32) []byte {
	b = append(b, `{"idx":[`...)
	for k, e := range idx {
		if k > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(e), 10)
	}
	b = append(b, `],"w":[`...)
	for k, f := range w {
		if k > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, float64(f), 'g', -1, 32)
	}
	return append(b, "]}\n"...)
}

// Read reads the routings of all layers, and all of r. Its input is not trusted: every count, id and weight is checked,
// and memory grows only with bytes that were read. Errors name the line; they wrap ErrCorrupt, or the error of r.
func Read(r io.Reader) ([]*Routing, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 4096), maxLineBytes)
	l := &lines{sc: sc}
	var layers []*Routing
	for n := 1; len(layers) < n; {
		g, h, err := l.layer(len(layers))
		if err != nil {
			return nil, err
		}
		layers = append(layers, g)
		if err := layers[0].sameShape(g); err != nil {
			return nil, fmt.Errorf("read routing: line %d: layer %d: %w: %w", l.n, len(layers)-1, err, ErrCorrupt)
		}
		if n == 1 {
			n = max(h.Layers, 1)
		}
	}
	if sc.Scan() || errors.Is(sc.Err(), bufio.ErrTooLong) {
		return nil, fmt.Errorf("read routing: line %d: more lines than the headers' layers and tokens: %w", l.n+1, ErrCorrupt)
	} else if sc.Err() != nil {
		return nil, fmt.Errorf("read routing: line %d: %w", l.n+1, sc.Err())
	}
	return layers, nil
}

// lines are those of a file, n of them read.
type lines struct {
	sc *bufio.Scanner
	n  int
}

// next decodes the next line.
func (l *lines) next(what string, into any) error {
	l.n++
	if !l.sc.Scan() {
		if err := l.sc.Err(); errors.Is(err, bufio.ErrTooLong) {
			return fmt.Errorf("read routing: line %d: longer than %d bytes: %w", l.n, maxLineBytes, ErrCorrupt)
		} else if err != nil {
			return fmt.Errorf("read routing: line %d: %w", l.n, err)
		}
		return fmt.Errorf("read routing: line %d: end of file, wanted %s: %w", l.n, what, ErrCorrupt)
	}
	if err := decodeLine(l.sc.Bytes(), into); err != nil {
		if l.sc.Err() != nil { // the line was cut short by its reader, not by its writer
			return fmt.Errorf("read routing: line %d: %w", l.n, l.sc.Err())
		}
		return fmt.Errorf("read routing: line %d: %s: %w: %w", l.n, what, err, ErrCorrupt)
	}
	return nil
}

// layer reads a header and its tokens.
func (l *lines) layer(n int) (*Routing, fileHeader, error) {
	var h fileHeader
	if err := l.next(fmt.Sprintf("the header of layer %d", n), &h); err != nil {
		return nil, h, err
	}
	if err := h.check(); err != nil {
		return nil, h, fmt.Errorf("read routing: line %d: %w: %w", l.n, err, ErrCorrupt)
	}
	g := &Routing{Ranks: h.Ranks, Experts: h.Experts, TopK: h.TopK, Seed: h.Seed,
		Idx: make([][]int32, h.Ranks), Weights: make([][]float32, h.Ranks)}
	for rank, tokens := range h.Tokens {
		for t := range tokens {
			var tok fileToken
			if err := l.next(fmt.Sprintf("token %d of %d of rank %d", t, tokens, rank), &tok); err != nil {
				return nil, h, err
			}
			if err := tok.check(h); err != nil {
				return nil, h, fmt.Errorf("read routing: line %d: layer %d rank %d token %d: %w: %w", l.n, n, rank, t, err, ErrCorrupt)
			}
			g.Idx[rank] = append(g.Idx[rank], tok.Idx...)
			g.Weights[rank] = append(g.Weights[rank], tok.W...)
		}
	}
	return g, h, nil
}

// decodeLine refuses unknown names, anything after the object, and null, which would pass for expert 0.
func decodeLine(line []byte, into any) error {
	if bytes.Contains(line, []byte("null")) {
		return errors.New("null, accepted numbers")
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("bytes after the object")
	}
	return nil
}

func (h fileHeader) check() error {
	if h.Format != fileFormat {
		return fmt.Errorf("format %q, accepted %q", h.Format, fileFormat)
	}
	if h.Version != fileVersion {
		return fmt.Errorf("version %d, accepted %d", h.Version, fileVersion)
	}
	if h.Layers < 0 || h.Layers > MaxLayers {
		return fmt.Errorf("layers %d, accepted 1..%d", h.Layers, MaxLayers)
	}
	if err := checkShape(h.Ranks, h.Experts, h.TopK); err != nil {
		return err
	}
	if len(h.Tokens) != h.Ranks {
		return fmt.Errorf("token counts of %d ranks, wanted %d", len(h.Tokens), h.Ranks)
	}
	for r, n := range h.Tokens {
		if n < 0 || n > MaxTokens {
			return fmt.Errorf("rank %d: tokens %d, accepted 0..%d", r, n, MaxTokens)
		}
	}
	return nil
}

func (t fileToken) check(h fileHeader) error {
	if len(t.Idx) != h.TopK || len(t.W) != h.TopK {
		return fmt.Errorf("%d selections and %d weights, wanted topk %d of each", len(t.Idx), len(t.W), h.TopK)
	}
	if k, err := checkEntries(t.Idx, t.W, h.Experts); err != nil {
		return fmt.Errorf("selection %d: %w", k, err)
	}
	return nil
}

// WriteFile writes the layers to the file at path, replacing what is there.
func WriteFile(path string, layers ...*Routing) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write routing: %w", err)
	}
	if err := Write(f, layers...); err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write routing: %w", err)
	}
	return nil
}

// ReadFile reads the routings of all layers in the file at path, which its first bytes tell apart: what Write wrote, or
// numpy's arrays,
//
//	numpy.savez("routing.npz", idx=idx, weights=weights, experts=256)
//	numpy.save("routing.npy", idx)
//
// with idx and weights [layer][rank][token][k], or [rank][token][k]: integers, -1 for no selection, and floats. Where there
// are no weights, each is 1/topk. Experts is the number of experts in the world where the file does not say it. Errors name
// path, layer, rank, token, selection and value; those for bytes that are no routing wrap ErrCorrupt.
func ReadFile(path string, experts int) ([]*Routing, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read routing: %w", err)
	}
	defer f.Close()
	var layers []*Routing
	b := bufio.NewReader(f)
	switch magic, _ := b.Peek(len(npyMagic)); {
	case string(magic) == npyMagic:
		layers, err = readNPY(b, experts)
	case strings.HasPrefix(string(magic), zipMagic):
		var st os.FileInfo
		if st, err = f.Stat(); err == nil {
			layers, err = readNPZ(f, st.Size(), experts)
		}
	default:
		layers, err = Read(b)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return layers, nil
}
