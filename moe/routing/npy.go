// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"archive/zip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/doorbell-net/doorbell/internal/num"
)

// Arrays as numpy writes them (numpy.lib.format, versions 1.0 to 3.0): a magic string, the version, a header that is a
// Python dictionary, and the values.

const (
	npyMagic = "\x93NUMPY"
	zipMagic = "PK"

	maxHeaderBytes = 64 << 10
	maxSelections  = 1 << 28 // of all layers of a file
)

// dtype is the type of an array's values.
type dtype struct {
	kind  byte // i, u or f
	bytes int
	order binary.ByteOrder
}

// array is what a .npy holds. Its raw values are in C order, or in Fortran's.
type array struct {
	dtype
	shape   []int
	fortran bool
	raw     []byte
}

// npyHeader takes blanks and a last comma where other writers than numpy differ from it.
var npyHeader = regexp.MustCompile(`^\{\s*'descr'\s*:\s*'([<>|])([iuf])(1|2|4|8)'\s*,\s*` +
	`'fortran_order'\s*:\s*(True|False)\s*,\s*'shape'\s*:\s*\(([\d\s,]*)\)\s*,?\s*\}\s*$`)

// readArray reads a whole .npy of one of the numbers of dimensions given. Its input is not trusted: memory grows only
// with bytes that were read.
func readArray(r io.Reader, dims ...int) (*array, error) {
	text, err := readHeader(r)
	if err != nil {
		return nil, err
	}
	m := npyHeader.FindStringSubmatch(text)
	if m == nil {
		return nil, corrupt("header %.200q, accepted {'descr': '<i8', 'fortran_order': False, 'shape': (...), } with integers of 1 to 8 bytes or floats of 2 to 8", text)
	}
	a := &array{dtype: dtype{m[2][0], int(m[3][0] - '0'), binary.LittleEndian}, fortran: m[4] == "True"}
	if m[1] == ">" {
		a.order = binary.BigEndian
	}
	if a.kind == 'f' && a.bytes == 1 || m[1] == "|" && a.bytes > 1 {
		return nil, corrupt("values of type %s%s%s, accepted integers of 1 to 8 bytes and floats of 2 to 8", m[1], m[2], m[3])
	}
	n := 1
	for _, d := range strings.FieldsFunc(m[5], func(c rune) bool { return c == ',' || c == ' ' }) {
		v, err := strconv.Atoi(d)
		if err != nil || v > maxSelections || v > 0 && n > maxSelections/v {
			return nil, corrupt("shape (%s), accepted up to %d values", m[5], maxSelections)
		}
		a.shape, n = append(a.shape, v), n*v
	}
	if !slices.Contains(dims, len(a.shape)) {
		return nil, corrupt("shape (%s) of %d dimensions, accepted %v", m[5], len(a.shape), dims)
	}
	if a.raw, err = io.ReadAll(io.LimitReader(r, int64(n*a.bytes)+1)); err != nil {
		return nil, err
	}
	if len(a.raw) != n*a.bytes {
		return nil, corrupt("%d bytes of values or more, wanted %d for shape (%s)", len(a.raw), n*a.bytes, m[5])
	}
	return a, nil
}

// readHeader reads up to the values. The length of the header has 2 bytes in version 1, 4 in the later ones, whose
// third has text in UTF-8.
func readHeader(r io.Reader) (string, error) {
	var b [10]byte
	if err := full(r, b[:], "the start"); err != nil {
		return "", err
	}
	if string(b[:6]) != npyMagic {
		return "", corrupt("first bytes %q, accepted %q", b[:6], npyMagic)
	}
	n := uint32(binary.LittleEndian.Uint16(b[8:]))
	switch major := b[6]; major {
	case 1:
	case 2, 3:
		var high [2]byte
		if err := full(r, high[:], "the length of the header"); err != nil {
			return "", err
		}
		n |= uint32(binary.LittleEndian.Uint16(high[:])) << 16
	default:
		return "", corrupt("version %d, accepted 1 to 3", major)
	}
	if n > maxHeaderBytes {
		return "", corrupt("header of %d bytes, accepted up to %d", n, maxHeaderBytes)
	}
	text := make([]byte, n)
	err := full(r, text, "the header")
	return string(text), err
}

func full(r io.Reader, b []byte, what string) error {
	_, err := io.ReadFull(r, b)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return corrupt("end of file in %s", what)
	}
	return err
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrCorrupt)
}

// values calls each for all values in C order; i counts them.
func (a *array) values(each func(i int, raw []byte) error) error {
	digits := make([]int, len(a.shape)) // of i: the last one counts fastest in C order, the first in Fortran's
	for i := range len(a.raw) / a.bytes {
		at := i
		if a.fortran {
			at = 0
			for d := len(a.shape) - 1; d >= 0; d-- {
				at = at*a.shape[d] + digits[d]
			}
			for d := len(digits) - 1; d >= 0; d-- {
				if digits[d]++; digits[d] < a.shape[d] {
					break
				}
				digits[d] = 0
			}
		}
		if err := each(i, a.raw[at*a.bytes:][:a.bytes]); err != nil {
			return err
		}
	}
	return nil
}

// integer is a value of an array of integers; what is beyond int64 becomes the largest.
func (t dtype) integer(raw []byte) int64 {
	v := t.bits(raw)
	if t.kind == 'u' {
		return int64(min(v, math.MaxInt64))
	}
	unused := 64 - 8*t.bytes
	return int64(v<<unused) >> unused
}

// float is a value of an array of floats, rounded to float32.
func (t dtype) float(raw []byte) float32 {
	switch v := t.bits(raw); t.bytes {
	case 2:
		return num.F16ToF32(uint16(v))
	case 4:
		return math.Float32frombits(uint32(v))
	default:
		return float32(math.Float64frombits(v))
	}
}

func (t dtype) bits(raw []byte) uint64 {
	switch t.bytes {
	case 1:
		return uint64(raw[0])
	case 2:
		return uint64(t.order.Uint16(raw))
	case 4:
		return uint64(t.order.Uint32(raw))
	default:
		return t.order.Uint64(raw)
	}
}

// readNPY reads the selections of all layers from a .npy. Each of a token's weights is 1/topk.
func readNPY(r io.Reader, experts int) ([]*Routing, error) {
	idx, err := readArray(r, 3, 4)
	if err != nil {
		return nil, err
	}
	return fromArrays(idx, nil, experts)
}

// readNPZ reads the arrays idx, weights and experts of a .npz; the last two may be missing.
func readNPZ(r io.ReaderAt, size int64, experts int) ([]*Routing, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, blame(err)
	}
	dims := map[string][]int{"idx.npy": {3, 4}, "weights.npy": {3, 4}, "experts.npy": {0}}
	arrays := make(map[string]*array)
	for _, f := range z.File {
		if dims[f.Name] == nil || arrays[f.Name] != nil {
			return nil, corrupt("array %q, accepted once each: idx, weights, experts", strings.TrimSuffix(f.Name, ".npy"))
		}
		if arrays[f.Name], err = readMember(f, dims[f.Name]); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if arrays["idx.npy"] == nil {
		return nil, corrupt("no array idx")
	}
	if e := arrays["experts.npy"]; e != nil {
		n := e.integer(e.raw)
		if e.kind == 'f' || n < 1 || n > MaxExperts {
			return nil, corrupt("experts %d of type %c%d, accepted integers 1..%d", n, e.kind, e.bytes, MaxExperts)
		}
		experts = int(n)
	}
	return fromArrays(arrays["idx.npy"], arrays["weights.npy"], experts)
}

func readMember(f *zip.File, dims []int) (*array, error) {
	r, err := f.Open()
	if err != nil {
		return nil, blame(err)
	}
	defer r.Close()
	a, err := readArray(r, dims...)
	return a, blame(err)
}

// blame says of an error of a .npz that it is the file's, if it is not the disk's.
func blame(err error) error {
	var disk *fs.PathError
	if err == nil || errors.Is(err, ErrCorrupt) || errors.As(err, &disk) {
		return err
	}
	return corrupt("%v", err)
}

// fromArrays makes each layer of [layer][rank][token][k], or the one of [rank][token][k].
func fromArrays(idx, weights *array, experts int) ([]*Routing, error) {
	if idx.kind == 'f' {
		return nil, corrupt("idx of type f%d, accepted integers", idx.bytes)
	}
	if weights != nil && (weights.kind != 'f' || !slices.Equal(weights.shape, idx.shape)) {
		return nil, corrupt("weights of type %c%d and shape %v, accepted floats of the shape of idx, %v", weights.kind, weights.bytes, weights.shape, idx.shape)
	}
	shape := idx.shape
	if len(shape) == 3 {
		shape = append([]int{1}, shape...)
	}
	layers, ranks, tokens, topK := shape[0], shape[1], shape[2], shape[3]
	if err := checkShape(ranks, experts, topK); err != nil {
		return nil, corrupt("shape %v: %v", idx.shape, err)
	}
	if layers < 1 || layers > MaxLayers || tokens < 1 || tokens > MaxTokens {
		return nil, corrupt("shape %v: %d layers of %d tokens a rank, accepted 1..%d and 1..%d", idx.shape, layers, tokens, MaxLayers, MaxTokens)
	}
	all := make([]*Routing, layers)
	for l := range all {
		all[l] = &Routing{Ranks: ranks, Experts: experts, TopK: topK, Idx: make([][]int32, ranks), Weights: make([][]float32, ranks)}
	}
	place := func(i int) (g *Routing, rank int) {
		block := i / (tokens * topK)
		return all[block/ranks], block % ranks
	}
	refuse := func(i int, err error) error {
		return corrupt("layer %d, rank %d, token %d, selection %d: %v", i/(tokens*topK)/ranks, i/(tokens*topK)%ranks, i/topK%tokens, i%topK, err)
	}
	err := idx.values(func(i int, raw []byte) error {
		v := idx.integer(raw)
		if err := checkExpert(v, experts); err != nil {
			return refuse(i, err)
		}
		g, r := place(i)
		g.Idx[r] = append(g.Idx[r], int32(v))
		if weights == nil {
			g.Weights[r] = append(g.Weights[r], 1/float32(topK))
		}
		return nil
	})
	if err == nil && weights != nil {
		err = weights.values(func(i int, raw []byte) error {
			w := weights.float(raw)
			if err := checkWeight(w); err != nil {
				return refuse(i, err)
			}
			g, r := place(i)
			g.Weights[r] = append(g.Weights[r], w)
			return nil
		})
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}
