// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// TestLayout: each field of random structs is read from the parameter at the offset that Go's own compiler gave it.
func TestLayout(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	r := testenv.Random(t)
	kinds := []reflect.Type{
		reflect.TypeFor[uint8](), reflect.TypeFor[int16](), reflect.TypeFor[uint32](), reflect.TypeFor[int64](), reflect.TypeFor[bool](),
		reflect.TypeFor[float32](), reflect.TypeFor[float64](), reflect.TypeFor[gpu.Ptr[uint16]](), reflect.TypeFor[[3]uint8](), reflect.TypeFor[[2]uint32](),
	}
	var text strings.Builder
	text.WriteString(head)
	structs := map[string]reflect.Type{}
	for i := range 12 {
		var fields []reflect.StructField
		for j := range 3 + r.IntN(8) {
			typ := kinds[r.IntN(len(kinds))]
			if r.IntN(5) == 0 { // one struct inside another
				typ = reflect.StructOf([]reflect.StructField{{Name: "U", Type: kinds[r.IntN(len(kinds))]}, {Name: "V", Type: kinds[r.IntN(len(kinds))]}})
			}
			fields = append(fields, reflect.StructField{Name: fmt.Sprintf("F%d", j), Type: typ})
		}
		fields = append(fields, reflect.StructField{Name: "Out", Type: reflect.TypeFor[gpu.Ptr[byte]]()})
		typ := reflect.StructOf(fields)
		fmt.Fprintf(&text, "type S%d %s\n\n", i, strings.ReplaceAll(typ.String(), "\"", ""))
		for j := range typ.NumField() - 1 {
			name := fmt.Sprintf("K%d_%d", i, j)
			structs[name] = typ
			f := typ.Field(j)
			fmt.Fprintf(&text, "//gpu:kernel\nfunc %s(t gpu.Thread, a S%d) { gpu.Cast[%s](a.Out).Store(a.%s) }\n\n", name, i, f.Type, f.Name)
		}
	}
	p, err := compileText(t, text.String(), Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	for _, k := range p.Kernels {
		typ := structs[k.Name]
		_, at, _ := strings.Cut(k.Name, "_")
		n, _ := strconv.Atoi(at)
		if k.ArgBytes != int64(typ.Size()) {
			t.Errorf("%s has %d bytes of arguments (want %d)", k.Name, k.ArgBytes, typ.Size())
		}
		checkReads(t, bodyOf(t, p, k.Name), k.Name, typ.Field(n), typ.Field(typ.NumField()-1).Offset)
	}
}

var paramRead = regexp.MustCompile(`ld\.param(?:\.v(\d))?\.[a-z](\d+)\s+[^;]*, \[%?\w+(?:\+(\d+))?\];`)

// checkReads wants reads of the field's bytes and of the pointer at out, and no others.
func checkReads(t *testing.T, body, name string, f reflect.StructField, out uintptr) {
	t.Helper()
	var got, want []int
	for _, m := range paramRead.FindAllStringSubmatch(body, -1) {
		n, _ := strconv.Atoi(m[2])
		at, _ := strconv.Atoi(m[3])
		if v, _ := strconv.Atoi(m[1]); v > 0 {
			n *= v
		}
		for i := range n / 8 {
			got = append(got, at+i)
		}
	}
	want = bytesRead(f.Type, int(f.Offset))
	for i := range 8 {
		want = append(want, int(out)+i)
	}
	slices.Sort(want)
	slices.Sort(got)
	got = slices.Compact(got)
	for _, b := range want {
		if !slices.Contains(got, b) {
			t.Errorf("%s: byte %d of field %s at %d is not read:\n%s", name, b, f.Type, f.Offset, body)
			return
		}
	}
	for _, b := range got {
		inField := b >= int(f.Offset) && b < int(f.Offset+f.Type.Size())
		if inOut := b >= int(out) && b < int(out)+8; !inField && !inOut {
			t.Errorf("%s: byte %d is read, the field %s is at %d:\n%s", name, b, f.Type, f.Offset, body)
			return
		}
	}
}

// bytesRead is the bytes that hold a value of the type, without what pads it.
func bytesRead(t reflect.Type, at int) []int {
	var all []int
	if t.Kind() == reflect.Struct && t.PkgPath() == "" {
		for i := range t.NumField() {
			all = append(all, bytesRead(t.Field(i).Type, at+int(t.Field(i).Offset))...)
		}
		return all
	}
	for i := range int(t.Size()) {
		all = append(all, at+i)
	}
	return all
}

// isRead says whether a kernel can read a field; one that splits it is a constant there.
func isRead(f reflect.StructField) bool { return f.IsExported() && f.Tag.Get("gpu") != "split" }

// TestDevComm: the words of a device communicator are read where the host wrote them.
func TestDevComm(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	var text strings.Builder
	fmt.Fprintf(&text, "package k\n\nimport (\n\t%q\n\t%q\n)\n\ntype A struct {\n\tOut gpu.Ptr[byte]\n\tWin gin.Window\n\tDC gin.DevComm\n}\n\n", modulePath+"/gin", modulePath+"/gpu")
	typ := reflect.TypeFor[gin.DevComm]()
	for i := range typ.NumField() {
		if f := typ.Field(i); isRead(f) {
			fmt.Fprintf(&text, "//gpu:kernel\nfunc K%s(t gpu.Thread, a A) { %s }\n\n", f.Name, map[bool]string{
				true:  "if a.DC." + f.Name + ".IsNil() { a.Out.Store(1) }",
				false: "if a.DC." + f.Name + " == 7 { a.Out.Store(1) }",
			}[f.Type.Kind() == reflect.Struct])
		}
	}
	p, err := compileText(t, text.String(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	base := 8 + reflect.TypeFor[gin.Window]().Size()
	for i := range typ.NumField() {
		f := typ.Field(i)
		if !isRead(f) {
			continue
		}
		f.Offset += base
		checkReads(t, bodyOf(t, p, "K"+f.Name), f.Name, f, 0)
	}
}
