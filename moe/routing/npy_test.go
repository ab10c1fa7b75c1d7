// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// numpyRouting is what testdata/numpy/make.py writes.
func numpyRouting(weight func(i int) float32) []*Routing {
	idx := []int32{7, 0, 1, 2, 3, -1, 6, 5, -1, -1, 0, 7, 4, 3, 2, 1, 0, 6, 5, 4, 1, -1, 2, 6}
	var layers []*Routing
	for l := range 2 {
		g := &Routing{Ranks: 2, Experts: 8, TopK: 2}
		for r := range 2 {
			var w []float32
			for i := range 6 {
				w = append(w, weight(l*12+r*6+i))
			}
			g.Idx, g.Weights = append(g.Idx, idx[l*12+r*6:][:6]), append(g.Weights, w)
		}
		layers = append(layers, g)
	}
	return layers
}

func half(int) float32       { return 0.5 }
func eighths(i int) float32  { return float32(i) / 8 }
func numpy(n string) string  { return filepath.Join("testdata", "numpy", n) }
func abs(layers []*Routing)  { everyID(layers, func(e int32) int32 { return max(e, -e) }) }
func same(layers []*Routing) {}

func everyID(layers []*Routing, f func(int32) int32) {
	for _, g := range layers {
		for _, idx := range g.Idx {
			for i := range idx {
				idx[i] = f(idx[i])
			}
		}
	}
}

func TestNumpysBytesAreRead(t *testing.T) {
	for name, c := range map[string]struct {
		weight func(int) float32
		change func([]*Routing)
	}{
		"i8.npy": {half, same}, "i1.npy": {half, same}, "i2_big.npy": {half, same}, "i4_fortran.npy": {half, same}, "u4.npy": {half, abs},
		"version2.npy": {half, same}, "version3.npy": {half, same},
		"f4.npz": {eighths, same}, "f2.npz": {eighths, same}, "f8_fortran.npz": {eighths, same}, "f8_big.npz": {eighths, same},
	} {
		want := numpyRouting(c.weight)
		c.change(want)
		experts := 8
		if name == "f4.npz" || name == "f2.npz" {
			experts = 1 // the file says how many there are
		}
		got, err := ReadFile(numpy(name), experts)
		if err != nil || !slices.EqualFunc(got, want, equal) {
			t.Errorf("%s: error %v, got %+v, want %+v", name, err, got, want)
		}
	}
	got, err := ReadFile(numpy("one_layer.npy"), 8)
	if want := numpyRouting(half)[1:]; err != nil || !slices.EqualFunc(got, want, equal) {
		t.Errorf("one layer: error %v, got %+v, want %+v", err, got, want)
	}
}

// npy is the bytes of an array of version 1.
func npy(header, values string) string {
	return npyMagic + "\x01\x00" + string([]byte{byte(len(header)), byte(len(header) >> 8)}) + header + values
}

// npz is the bytes of a .npz with those arrays, two strings each: name and bytes.
func npz(arrays ...string) string {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(arrays); i += 2 {
		w, err := z.Create(arrays[i])
		if err != nil {
			panic(err)
		}
		w.Write([]byte(arrays[i+1])) // into memory
	}
	z.Close()
	return b.String()
}

func dict(descr, shape string) string {
	return fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }\n", descr, shape)
}

func TestBadArraysAreRefused(t *testing.T) {
	file, err := os.ReadFile(numpy("i8.npy"))
	if err != nil {
		t.Fatal(err)
	}
	i8 := string(file)
	if file, err = os.ReadFile(numpy("f2.npz")); err != nil {
		t.Fatal(err)
	}
	stored := string(file)
	bytes4, idx := dict("|i1", "1, 1, 2, 2"), npy(dict("|i1", "1, 1, 2, 2"), "\x00\x01\x02\x03")
	for name, c := range map[string]struct{ in, want string }{
		"start alone":      {npyMagic, "end of file in the start"},
		"version 4":        {i8[:6] + "\x04" + i8[7:], "version 4, accepted 1 to 3"},
		"header cut":       {i8[:40], "end of file in the header"},
		"length cut":       {npyMagic + "\x02\x00\x01\x00", "end of file in the length of the header"},
		"header huge":      {npyMagic + "\x02\x00\x01\x00\x01\x00", "header of 65537 bytes, accepted up to 65536"},
		"no dictionary":    {npy("hello", ""), `header "hello", accepted {'descr'`},
		"objects":          {npy(dict("|O", "1, 1, 1"), "x"), "accepted {'descr'"},
		"complex":          {npy(dict("<c8", "1, 1, 1"), "x"), "accepted {'descr'"},
		"float of 1 byte":  {npy(dict("|f1", "1, 1, 1"), "x"), "values of type |f1"},
		"no byte order":    {npy(dict("|i4", "1, 1, 1"), "abcd"), "values of type |i4"},
		"2 dimensions":     {npy(dict("|i1", "2, 2"), "abcd"), "2 dimensions, accepted [3 4]"},
		"1 dimension":      {npy(dict("|i1", "4,"), "abcd"), "1 dimensions"},
		"shape overflows":  {npy(dict("|i1", "16384, 16384, 2"), ""), "accepted up to 268435456 values"},
		"length overflows": {npy(dict("|i1", "99999999999999999999, 1, 1"), ""), "accepted up to"},
		"values cut":       {npy(bytes4, "abc"), "3 bytes of values or more, wanted 4"},
		"values too many":  {npy(bytes4, "abcde"), "5 bytes of values or more, wanted 4"},
		"no ranks":         {npy(dict("|i1", "1, 0, 2, 2"), ""), "ranks 0, accepted 1..4096"},
		"no tokens":        {npy(dict("|i1", "4096, 4096, 0, 2"), ""), "layers of 0 tokens a rank"},
		"no layers":        {npy(dict("|i1", "0, 1, 2, 2"), ""), "0 layers"},
		"topk 33":          {npy(dict("|i1", "1, 1, 1, 33"), strings.Repeat("\x00", 33)), "topk 33, accepted 1..32"},
		"many tokens":      {npy(dict("|i1", "1, 1, 1048577, 1"), strings.Repeat("\x00", 1048577)), "1048577 tokens a rank"},
		"expert 8":         {npy(bytes4, "\x00\x01\x02\x08"), "layer 0, rank 0, token 1, selection 1: expert 8, accepted -1..7"},
		"expert -2":        {npy(dict("|i1", "2, 1, 1, 1"), "\x00\xfe"), "layer 1, rank 0, token 0, selection 0: expert -2"},
		"expert 2^32":      {npy(dict("<i8", "1, 2, 1, 1"), "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00"), "layer 0, rank 1, token 0, selection 0: expert 4294967296"},
		"expert 2^64-1":    {npy(dict("<u8", "1, 1, 1"), "\xff\xff\xff\xff\xff\xff\xff\xff"), "expert 9223372036854775807"},
		"no arrays":        {npz(), "no array idx"},
		"idx missing":      {npz("weights.npy", idx), "no array idx"},
		"name unknown":     {npz("idx.npy", idx, "weight.npy", idx), `array "weight", accepted once each: idx, weights, experts`},
		"idx twice":        {npz("idx.npy", idx, "idx.npy", idx), `array "idx", accepted once each`},
		"bad member":       {npz("idx.npy", "hello"), "idx.npy: end of file in the start"},
		"weights of ints":  {npz("idx.npy", idx, "weights.npy", idx), "weights of type i1"},
		"weights of shape": {npz("idx.npy", idx, "weights.npy", npy(dict("<f2", "1, 2, 1, 2"), "abcdefgh")), "accepted floats of the shape of idx, [1 1 2 2]"},
		"weight NaN":       {npz("idx.npy", idx, "weights.npy", npy(dict("<f2", "1, 1, 2, 2"), "abcdef\xff\x7f")), "layer 0, rank 0, token 1, selection 1: weight NaN"},
		"experts 0":        {npz("idx.npy", idx, "experts.npy", npy(dict("|i1", ""), "\x00")), "experts 0 of type i1"},
		"experts a float":  {npz("idx.npy", idx, "experts.npy", npy(dict("<f2", ""), "\x00\x01")), "experts"},
		"experts a list":   {npz("idx.npy", idx, "experts.npy", npy(dict("|i1", "1,"), "\x08")), "experts.npy: shape (1,) of 1 dimensions"},
		"archive cut":      {npz("idx.npy", idx)[:100], "zip"},
		"value changed":    {strings.Replace(stored, "\x03\x00\x00\x00", "\x04\x00\x00\x00", 1), "checksum"},
	} {
		path := filepath.Join(t.TempDir(), "routing")
		if err := os.WriteFile(path, []byte(c.in), 0o600); err != nil {
			t.Fatal(err)
		}
		layers, err := ReadFile(path, 8)
		if layers != nil || err == nil || !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, wanted an ErrCorrupt with the path and %q", name, err, c.want)
		}
	}
	if _, err := ReadFile(numpy("f4.npy"), 8); err == nil || !strings.Contains(err.Error(), "idx of type f4, accepted integers") {
		t.Errorf("selections in floats: %v", err)
	}
	if _, err := ReadFile(numpy("i8.npy"), 7); err == nil || !strings.Contains(err.Error(), "i8.npy: layer 0, rank 0, token 0, selection 0: expert 7, accepted -1..6") {
		t.Errorf("more experts than there are: %v", err)
	}
}

func addFiles(f *testing.F, pattern string) {
	names, err := filepath.Glob(numpy(pattern))
	if err != nil || len(names) == 0 {
		f.Fatalf("no %s: %v", pattern, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
}

func FuzzReadNPY(f *testing.F) {
	addFiles(f, "*.npy")
	f.Fuzz(func(t *testing.T, in []byte) {
		layers, err := readNPY(bytes.NewReader(in), 8)
		checkRead(t, layers, err, len(in))
	})
}

func FuzzReadNPZ(f *testing.F) {
	addFiles(f, "*.npz")
	f.Add([]byte(npz("idx.npy", npy(dict("|i1", "1, 1, 1"), "\x00"), "experts.npy", npy(dict("|u1", ""), "\x01"))))
	f.Fuzz(func(t *testing.T, in []byte) {
		layers, err := readNPZ(bytes.NewReader(in), int64(len(in)), 8)
		checkRead(t, layers, err, 1100*len(in)) // what deflate makes of a byte at most
	})
}
