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
)

// A recorded routing is JSON lines, so that a few lines of script can make one from a real model: a header, then one line
// per token, tokens of rank 0 first.
//
//	{"format":"doorbell-routing","version":1,"ranks":2,"experts":4,"topk":2,"seed":7,"tokens":[1,2]}
//	{"idx":[3,0],"w":[0.75,0.25]}
//	{"idx":[1,-1],"w":[0.5,0.5]}
//	{"idx":[-1,-1],"w":[0.5,0.5]}
//
// tokens gives the count of each rank, so that a file cut short is seen. Weights are FP32, written with the digits that
// give the same bits back.

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

// Write writes g to w as JSON lines, after g.Validate.
func Write(w io.Writer, g *Routing) error {
	if err := g.Validate(); err != nil {
		return fmt.Errorf("write routing: %w", err)
	}
	h := fileHeader{fileFormat, fileVersion, g.Ranks, g.Experts, g.TopK, g.Seed, make([]int, g.Ranks)}
	for r := range h.Tokens {
		h.Tokens[r] = g.Tokens(r)
	}
	line, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("write routing: %w", err)
	}
	b := bufio.NewWriter(w)
	b.Write(append(line, '\n')) // bufio keeps the first error for Flush
	for r := range g.Idx {
		for i := 0; i < len(g.Idx[r]); i += g.TopK {
			line = appendToken(line[:0], g.Idx[r][i:i+g.TopK], g.Weights[r][i:i+g.TopK])
			b.Write(line)
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write routing: %w", err)
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

// Read reads one routing and all of r. Its input is not trusted: every count, id and weight is checked, and memory grows
// only with bytes that were read. Errors name the line; they wrap ErrCorrupt, or the error of r.
func Read(r io.Reader) (*Routing, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 4096), maxLineBytes)
	line := 0
	next := func(what string, into any) error {
		line++
		if !sc.Scan() {
			if err := sc.Err(); errors.Is(err, bufio.ErrTooLong) {
				return fmt.Errorf("read routing: line %d: longer than %d bytes: %w", line, maxLineBytes, ErrCorrupt)
			} else if err != nil {
				return fmt.Errorf("read routing: line %d: %w", line, err)
			}
			return fmt.Errorf("read routing: line %d: end of file, wanted %s: %w", line, what, ErrCorrupt)
		}
		if err := decodeLine(sc.Bytes(), into); err != nil {
			if sc.Err() != nil { // the line was cut short by r, not by its writer
				return fmt.Errorf("read routing: line %d: %w", line, sc.Err())
			}
			return fmt.Errorf("read routing: line %d: %s: %w: %w", line, what, err, ErrCorrupt)
		}
		return nil
	}

	var h fileHeader
	if err := next("the header", &h); err != nil {
		return nil, err
	}
	if err := h.check(); err != nil {
		return nil, fmt.Errorf("read routing: line 1: %w: %w", err, ErrCorrupt)
	}
	g := &Routing{Ranks: h.Ranks, Experts: h.Experts, TopK: h.TopK, Seed: h.Seed,
		Idx: make([][]int32, h.Ranks), Weights: make([][]float32, h.Ranks)}
	for rank, tokens := range h.Tokens {
		for t := 0; t < tokens; t++ {
			var tok fileToken
			if err := next(fmt.Sprintf("token %d of %d of rank %d", t, tokens, rank), &tok); err != nil {
				return nil, err
			}
			if err := tok.check(h); err != nil {
				return nil, fmt.Errorf("read routing: line %d: rank %d token %d: %w: %w", line, rank, t, err, ErrCorrupt)
			}
			g.Idx[rank] = append(g.Idx[rank], tok.Idx...)
			g.Weights[rank] = append(g.Weights[rank], tok.W...)
		}
	}
	if sc.Scan() || errors.Is(sc.Err(), bufio.ErrTooLong) {
		return nil, fmt.Errorf("read routing: line %d: more lines than the header's tokens: %w", line+1, ErrCorrupt)
	} else if sc.Err() != nil {
		return nil, fmt.Errorf("read routing: line %d: %w", line+1, sc.Err())
	}
	return g, nil
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

// WriteFile writes g to the file at path, replacing what is there.
func WriteFile(path string, g *Routing) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write routing: %w", err)
	}
	if err := Write(f, g); err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write routing: %w", err)
	}
	return nil
}

// ReadFile reads the routing in the file at path. Errors name the path and are else those of Read.
func ReadFile(path string) (*Routing, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read routing: %w", err)
	}
	defer f.Close()
	g, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return g, nil
}
