// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

const goldenFile = `{"format":"doorbell-routing","version":1,"ranks":3,"experts":4,"topk":2,"seed":18446744073709551615,"tokens":[1,0,2]}
{"idx":[3,0],"w":[0.75,0.25]}
{"idx":[1,-1],"w":[0.1,1e-07]}
{"idx":[-1,2],"w":[3,-0]}
`

func goldenRouting() *Routing {
	return &Routing{Ranks: 3, Experts: 4, TopK: 2, Seed: math.MaxUint64,
		Idx:     [][]int32{{3, 0}, nil, {1, -1, -1, 2}},
		Weights: [][]float32{{0.75, 0.25}, nil, {0.1, 1e-7, 3, float32(math.Copysign(0, -1))}}}
}

func TestFileGolden(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, goldenRouting()); err != nil || b.String() != goldenFile {
		t.Errorf("write: error %v, got\n%swant\n%s", err, b.String(), goldenFile)
	}
	got, err := Read(strings.NewReader(goldenFile))
	if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], goldenRouting()) {
		t.Fatalf("read: error %v, got %+v, want %+v", err, got, goldenRouting())
	}
	if math.Signbit(float64(got[0].Weights[2][3])) == false {
		t.Error("read: -0 lost its sign")
	}
}

func TestFileRoundTrip(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		o := drawOptions(t)
		var layers []*Routing
		for range rapid.IntRange(1, 4).Draw(t, "layers") {
			g, err := Generate(o)
			if err != nil {
				t.Fatal(err)
			}
			layers = append(layers, g)
			o.Seed, o.Tokens = o.Seed+1, o.Tokens/2
		}
		path := filepath.Join(dir, "routing.jsonl")
		if err := WriteFile(path, layers...); err != nil {
			t.Fatal(err)
		}
		got, err := ReadFile(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(layers, got, equal) {
			t.Fatalf("got %+v, want %+v", got, layers)
		}
	})
}

// equal tells nil and empty ranks not apart.
func equal(a, b *Routing) bool {
	if a.Ranks != b.Ranks || a.Experts != b.Experts || a.TopK != b.TopK || a.Seed != b.Seed {
		return false
	}
	for r := range a.Idx {
		if len(a.Idx[r]) != len(b.Idx[r]) {
			return false
		}
		for i := range a.Idx[r] {
			if a.Idx[r][i] != b.Idx[r][i] || math.Float32bits(a.Weights[r][i]) != math.Float32bits(b.Weights[r][i]) {
				return false
			}
		}
	}
	return true
}

func TestReadRefuses(t *testing.T) {
	twoLayers := strings.Replace(goldenFile, `"version":1`, `"version":1,"layers":2`, 1)
	header := func(s string) string { return strings.Replace(goldenFile, `"tokens":[1,0,2]`, s, 1) }
	for name, c := range map[string]struct{ in, want string }{
		"empty":            {"", "line 1: end of file, wanted the header of layer 0"},
		"layers cut":       {twoLayers, "line 5: end of file, wanted the header of layer 1"},
		"layers negative":  {strings.Replace(goldenFile, `"version":1`, `"version":1,"layers":-1`, 1), "layers -1, accepted 1..4096"},
		"layers differ":    {twoLayers + `{"format":"doorbell-routing","version":1,"ranks":3,"experts":5,"topk":2,"tokens":[0,0,0]}`, "line 5: layer 1: 3 ranks, 5 experts, topk 2; layer 0 has 3, 4 and 2"},
		"layers too many":  {goldenFile + goldenFile, "line 5: more lines than"},
		"not json":         {"hello\n", "line 1: the header"},
		"other format":     {strings.Replace(goldenFile, "doorbell-routing", "x", 1), `format "x", accepted "doorbell-routing"`},
		"later version":    {strings.Replace(goldenFile, `"version":1`, `"version":2`, 1), "version 2, accepted 1"},
		"no ranks":         {strings.Replace(goldenFile, `"ranks":3`, `"ranks":0`, 1), "ranks 0, accepted 1..4096"},
		"many experts":     {strings.Replace(goldenFile, `"experts":4`, `"experts":65537`, 1), "experts 65537, accepted 1..65536"},
		"large topk":       {strings.Replace(goldenFile, `"topk":2`, `"topk":33`, 1), "topk 33, accepted 1..32"},
		"counts short":     {header(`"tokens":[1,0]`), "token counts of 2 ranks, wanted 3"},
		"count negative":   {header(`"tokens":[1,-1,2]`), "rank 1: tokens -1"},
		"count huge":       {header(`"tokens":[1,1048577,2]`), "rank 1: tokens 1048577"},
		"count too big":    {header(`"tokens":[1,0,3]`), "line 5: end of file, wanted token 2 of 3 of rank 2"},
		"count too small":  {header(`"tokens":[1,0,1]`), "line 4: more lines than"},
		"blank line after": {goldenFile + "\n", "line 5: more lines than"},
		"cut short":        {goldenFile[:len(goldenFile)-5], "line 4"},
		"unknown name":     {strings.Replace(goldenFile, `"seed"`, `"sead"`, 1), "sead"},
		"expert too high":  {strings.Replace(goldenFile, "[1,-1]", "[4,-1]", 1), "line 3: layer 0 rank 2 token 0: selection 0: expert 4, accepted -1..3"},
		"expert below -1":  {strings.Replace(goldenFile, "[1,-1]", "[1,-2]", 1), "selection 1: expert -2"},
		"expert overflows": {strings.Replace(goldenFile, "[1,-1]", "[4294967296,-1]", 1), "line 3"},
		"expert null":      {strings.Replace(goldenFile, "[1,-1]", "[1,null]", 1), "line 3: token 0 of 2 of rank 2: null, accepted numbers"},
		"selections short": {strings.Replace(goldenFile, "[1,-1]", "[1]", 1), "1 selections and 2 weights, wanted topk 2"},
		"weights long":     {strings.Replace(goldenFile, "[0.1,1e-07]", "[1,2,3]", 1), "2 selections and 3 weights"},
		"weight overflows": {strings.Replace(goldenFile, "1e-07", "1e39", 1), "line 3"},
		"two on a line":    {strings.Replace(goldenFile, "0.25]}", "0.25]} 7", 1), "bytes after the object"},
		"endless line":     {goldenFile + strings.Repeat(" ", maxLineBytes+1), "more lines than"},
		"endless header":   {strings.Repeat(" ", maxLineBytes+1), "line 1: longer than 65536 bytes"},
	} {
		g, err := Read(strings.NewReader(c.in))
		if g != nil || err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %v, wanted an ErrCorrupt with %q", name, err, c.want)
		}
	}
}

func TestFileErrorsAreNotCorruption(t *testing.T) {
	broken := errors.New("broken disk")
	for _, cut := range []int{0, 40, len(goldenFile)} {
		in := io.MultiReader(strings.NewReader(goldenFile[:cut]), iotest.ErrReader(broken))
		if _, err := Read(in); !errors.Is(err, broken) || errors.Is(err, ErrCorrupt) {
			t.Errorf("disk breaks after %d bytes: got %v, wanted the disk's error", cut, err)
		}
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none"), 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("file is not there: got %v", err)
	}
	if err := WriteFile(filepath.Join(t.TempDir(), "none", "f"), goldenRouting()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder is not there: got %v", err)
	}
	if err := Write(&failing{broken}, goldenRouting()); !errors.Is(err, broken) {
		t.Errorf("write to a broken disk: got %v", err)
	}
}

type failing struct{ err error }

func (f *failing) Write([]byte) (int, error) { return 0, f.err }

func TestWriteRefusesBadRouting(t *testing.T) {
	if err := Write(io.Discard); err == nil || !strings.Contains(err.Error(), "0 layers, accepted 1..4096") {
		t.Errorf("no layers: %v", err)
	}
	other := goldenRouting()
	other.Experts = 5
	if err := Write(io.Discard, goldenRouting(), other); err == nil || !strings.Contains(err.Error(), "layer 1: 3 ranks, 5 experts") {
		t.Errorf("layers of other experts: %v", err)
	}
	for want, change := range map[string]func(*Routing){
		"ranks 0":                                func(g *Routing) { g.Ranks = 0 },
		"selections of 2 ranks":                  func(g *Routing) { g.Idx = g.Idx[:2] },
		"rank 0: 1 selections":                   func(g *Routing) { g.Idx[0] = g.Idx[0][:1] },
		"rank 2: 3 weights for 4":                func(g *Routing) { g.Weights[2] = g.Weights[2][:3] },
		"rank 2 token 1 selection 0: expert 4":   func(g *Routing) { g.Idx[2][2] = 4 },
		"rank 2 token 1 selection 1: weight NaN": func(g *Routing) { g.Weights[2][3] = float32(math.NaN()) },
		"rank 0 token 0 selection 0: weight":     func(g *Routing) { g.Weights[0][0] = float32(math.Inf(1)) },
	} {
		g := goldenRouting()
		change(g)
		var b bytes.Buffer
		if err := Write(&b, g); err == nil || !strings.Contains(err.Error(), want) || b.Len() != 0 {
			t.Errorf("wrote %d bytes, error %v, wanted none and %q", b.Len(), err, want)
		}
	}
}

// checkRead holds that what was read from a number of bytes is valid, and small beside them, and comes back the same.
func checkRead(t *testing.T, layers []*Routing, err error, size int) {
	t.Helper()
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			t.Fatalf("bytes alone gave %v", err)
		}
		return
	}
	entries := 0
	for _, g := range layers {
		for r := range g.Idx {
			entries += len(g.Idx[r])
		}
	}
	if entries > size || len(layers)*layers[0].Ranks > size {
		t.Fatalf("%d entries of %d layers and %d ranks from %d bytes", entries, len(layers), layers[0].Ranks, size)
	}
	var b bytes.Buffer
	if err := Write(&b, layers...); err != nil {
		t.Fatal(err)
	}
	again, err := Read(&b)
	if err != nil || !slices.EqualFunc(layers, again, equal) {
		t.Fatalf("second reading: error %v, got %+v, want %+v", err, again, layers)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(goldenFile))
	f.Add([]byte(goldenFile[:len(goldenFile)-3]))
	f.Add([]byte(strings.Replace(goldenFile, `"version":1`, `"version":1,"layers":2`, 1) + goldenFile))
	f.Add([]byte(strings.Replace(goldenFile, `"tokens":[1,0,2]`, `"tokens":[1048576,0,0]`, 1)))
	f.Add([]byte(strings.Replace(goldenFile, `"ranks":3`, `"ranks":4096`, 1)))
	f.Add([]byte(`{"format":"doorbell-routing","version":1,"ranks":1,"experts":1,"topk":1,"seed":0,"tokens":[0]}`))
	f.Add([]byte(`{"format":"doorbell-routing","version":1,"ranks":1,"experts":1,"topk":1,"seed":0,"tokens":[1]}` + "\r\n" + `{"idx":[0],"w":[1e-45]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		layers, err := Read(bytes.NewReader(in))
		checkRead(t, layers, err, len(in))
	})
}
