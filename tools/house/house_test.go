// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const spdx = "// SPDX-License-Identifier: Apache-2.0\n"

// plant returns a tree of module "m" with the given files.
func plant(t *testing.T, files map[string]string) *Tree {
	t.Helper()
	fsys := fstest.MapFS{"go.mod": {Data: []byte("module m\n\ngo 1.26\n")}}
	for p, s := range files {
		fsys[p] = &fstest.MapFile{Data: []byte(s)}
	}
	tree, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// expect compares findings, written "path:line: message", with beginnings in want, in any order.
func expect(t *testing.T, got []Finding, want ...string) {
	t.Helper()
	left := slices.Clone(got)
	for _, w := range want {
		i := slices.IndexFunc(left, func(f Finding) bool { return strings.HasPrefix(f.String(), w) })
		if i < 0 {
			t.Errorf("not found: %s", w)
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, f := range left {
		t.Errorf("found, but nothing is wrong there: %s", f)
	}
}

func imports(pkg string, paths ...string) string {
	s := "package " + pkg + "\n"
	for _, p := range paths {
		s += fmt.Sprintf("import _ %q\n", p)
	}
	return s
}

var table = []Floor{
	{3, []Folder{{Path: "cmd/top", Program: true}, {Path: "tools", Program: true}}},
	{2, []Folder{{Path: ".", Only: map[string][]string{"net": {"a"}}}, {Path: "coll"}}},
	{1, []Folder{{Path: "net"}, {Path: "net/a"}, {Path: "net/b"}, {Path: "low"}}},
}

func TestFloors(t *testing.T) {
	expect(t, CheckFloors(plant(t, map[string]string{
		// Right.
		"root.go":           imports("m", "m/coll", "m/net", "m/net/a", "m/low", "fmt"),
		"cmd/top/main.go":   imports("main", "m", "m/cmd/top/x", "m/net/b"),
		"cmd/top/x/x.go":    imports("x", "m/cmd/top/x/y", "m/low"),
		"cmd/top/x/y/y.go":  imports("y"),
		"net/net.go":        imports("net", "m/low"),
		"net/net_test.go":   imports("net", "m", "m/net/a"),
		"net/a/a.go":        imports("a", "m/net", "m/net/b"),
		"net/c/c.go":        imports("c", "m/net"),
		"low/testdata/x.go": imports("x", "m"),
		// Wrong.
		"root2.go":     imports("m", "m/net/b"),
		"coll/up.go":   imports("coll", "m"),
		"low/up.go":    imports("low", "m/coll", "m/cmd/top"),
		"net/child.go": imports("net", "m/net/a"),
		"net/b/up.go":  imports("b", "m/net/a"),
		"net/d/d.go":   imports("d", "m/net/c"),
		"util/util.go": imports("util", "m/low"),
		"low/util.go":  imports("low", "m/util"),
	}), table),
		"root2.go:2: . may not import net/b: of net it imports only a",
		"coll/up.go:2: coll may not import .: it stands higher in the list",
		"low/up.go:2: low may not import coll: it stands on floor 2",
		"low/up.go:3: low may not import cmd/top: it stands on floor 3",
		"net/child.go:2: net may not import net/a: a folder does not import what stands under it",
		"net/b/up.go:2: net/b may not import net/a: it stands higher",
		"net/d/d.go:2: net/d may not import net/c: two folders under net need lines",
		"util: this folder is on no floor: add it to `floors` in house_test.go",
		"low/util.go:2: low may not import util: that folder is on no floor",
	)
	if n, ok := FloorOf(table, "net/a/deep"); n != 1 || !ok {
		t.Errorf("net/a/deep stands on floor %d, %v (want 1)", n, ok)
	}
}

func TestImports(t *testing.T) {
	tree := plant(t, map[string]string{
		"low/low.go":        imports("low", "fmt", "m/x", "golang.org/x/sys/unix", "net/http", "github.com/a/b", "golang.org/x/sysx", "C"),
		"low/low_test.go":   imports("low", "github.com/a/b"),
		"cmd/top/top.go":    imports("main", "github.com/a/b", "net/http"),
		"low/other/file.go": imports("other", "errors"),
	})
	in := func(dir string) bool { return !within(dir, "cmd") }
	expect(t, CheckImports(tree, in, []string{"golang.org/x/sys"}),
		"low/low.go:6: github.com/a/b is foreign: allowed are the standard library, this module, golang.org/x/sys",
		"low/low.go:7: golang.org/x/sysx is foreign")
	expect(t, CheckForbidden(tree, in, "net/http", "C"),
		"low/low.go:5: net/http is not imported here",
		"low/low.go:8: C is not imported here")
}

func TestDevice(t *testing.T) {
	rules := []DeviceRule{
		{"kernel code", Kernels, []string{"math", "./gpu"}},
		{"package gpu", func(p string) bool { return within(p, "gpu") }, []string{"sync"}},
	}
	expect(t, CheckDevice(plant(t, map[string]string{
		"moe/ll_kernels.go":      imports("moe", "math", "m/gpu", "fmt", "m/low"),
		"moe/ll_kernels_test.go": imports("moe", "fmt"),
		"moe/host.go":            imports("moe", "fmt"),
		"gpu/gpu.go":             imports("gpu", "sync", "reflect"),
	}), rules),
		"moe/ll_kernels.go:4: kernel code may not import fmt: allowed are math, ./gpu",
		"moe/ll_kernels.go:5: kernel code may not import ./low",
		"gpu/gpu.go:3: package gpu may not import reflect: allowed are sync")
}

func TestKernels(t *testing.T) {
	body := `package moe
import "m/gpu"
type Args struct { A int; S string }
type number interface { int32 | int64 }
func ok(t gpu.Thread, n []int32) int { var a [4]int; s := a[:2]; panic("no"); return len(s) }
func bad(m map[int]int, c chan int, i interface{}, e error, a any) {
	go ok(nil, nil)
	defer ok(nil, nil)
	_ = make([]int, 3)
	_ = append(make([]int, 0), *new(int))
	_ = "text"
	select {}
}
`
	expect(t, CheckKernels(plant(t, map[string]string{"moe/ll_kernels.go": body, "moe/host.go": body})),
		"moe/ll_kernels.go:3: a string", "moe/ll_kernels.go:6: a map", "moe/ll_kernels.go:6: a channel",
		"moe/ll_kernels.go:6: an interface", "moe/ll_kernels.go:6: a error", "moe/ll_kernels.go:6: a any",
		"moe/ll_kernels.go:7: a goroutine", "moe/ll_kernels.go:8: defer", "moe/ll_kernels.go:9: make",
		"moe/ll_kernels.go:10: append", "moe/ll_kernels.go:10: make", "moe/ll_kernels.go:10: new",
		"moe/ll_kernels.go:11: a string", "moe/ll_kernels.go:12: select")
}

func TestEnv(t *testing.T) {
	body := "package p\nimport \"os\"\nvar a = os.Getenv(\"DOORBELL_A\")\nvar b, _ = os.LookupEnv(\"DOORBELL_B\")\nvar c = os.Getenv(\"HOME\")\n" +
		"var d = []string{\"DOORBELL_A=\", `DOORBELL_B`, \"set DOORBELL_C\", \"DOORBELL_\"}\n"
	expect(t, CheckEnv(plant(t, map[string]string{"p/p.go": body, "p/p_test.go": body, "env/env.go": body}), "env", []string{"DOORBELL_A"}),
		"p/p.go:3: read DOORBELL_A through its variable in env", "p/p.go:4: read DOORBELL_B",
		"p/p.go:4: DOORBELL_B is not declared in env", "p/p.go:6: DOORBELL_B is not declared")
}

func TestUnsafe(t *testing.T) {
	long := "package p\nimport \"unsafe\"\nfunc F() {\n\t_ = 1\n\t_ = 2\n\t_ = 3\n}\nfunc G() { for { } }\nfunc H() { switch { } }\nfunc I(x int) { if x > 1 { panic(1) } }\n"
	expect(t, CheckUnsafe(plant(t, map[string]string{
		"p/p.go":             imports("p", "fmt", "unsafe"),
		"p/p_test.go":        imports("p", "unsafe"),
		"p/unsafe.go":        imports("p", "unsafe"),
		"p/a_unsafe_test.go": imports("p", "unsafe"),
		"p/a_unsafe.go":      imports("p", "unsafe"),
		"p/b_unsafe.go":      long,
	}), 2),
		"p/p.go:3: unsafe is imported only in", "p/p_test.go:2: unsafe is", "p/unsafe.go:2: unsafe is",
		"p/b_unsafe.go:3: F has 3 lines (at most 2", "p/b_unsafe.go:8: G holds logic", "p/b_unsafe.go:9: H holds logic")
}

func TestSPDX(t *testing.T) {
	expect(t, CheckSPDX(plant(t, map[string]string{
		"a.go":       spdx + "\npackage a\n",
		"a.c":        "/* SPDX-License-Identifier: Apache-2.0 */\n",
		"a.h":        "// SPDX-License-Identifier: Apache-2.0\n",
		".ci/run":    "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n",
		"README":     "no source\n",
		"x.md":       "no source\n",
		".git/a.go":  "package a\n",
		"_old/a.go":  "package a\n",
		"b.go":       "package a\n" + spdx,
		"b.c":        "int x;\n",
		"b.cuh":      "// SPDX-License-Identifier: MIT\n",
		"tools/b.sh": "#!/bin/sh\necho\n",
		"tools/b":    "#!/usr/bin/env bash\n",
		"tools/c":    "\n" + "# SPDX-License-Identifier: Apache-2.0\n",
	}), "Apache-2.0"),
		"b.go:1: the first line must be", "b.c:1: ", "b.cuh:1: ", "tools/b.sh:1: ", "tools/b:1: ")
}

func TestSize(t *testing.T) {
	long := spdx + "package a\n" + strings.Repeat("//\n", 8)
	expect(t, CheckSize(plant(t, map[string]string{
		"a.go": long, "b.go": spdx + "// Code generated by x. DO NOT EDIT.\n" + long, "c.go": spdx + "package a\n", "d.h": long,
	}), 10), "a.go: 10 lines (fewer than 10 are allowed)", "d.h: 10 lines")
}

func TestSleep(t *testing.T) {
	body := "package p\nimport \"time\"\nfunc f() {\n\ttime.Sleep(1)\n\ttime.Sleep(2) // sleep: the kernel has no event for it\n\ttime.Sleep(3) // sleep:\n}\n" +
		"// time.Sleep(4)\nvar s = \"time.Sleep(5)\"\n"
	expect(t, CheckSleep(plant(t, map[string]string{"p_test.go": body, "p.go": body})),
		"p_test.go:4: wait for the event", "p_test.go:6: wait for the event")
}

func TestFormat(t *testing.T) {
	expect(t, CheckFormat(plant(t, map[string]string{
		"a.go": "package a\n", "b.go": "package a\nvar  x = 1\n", "testdata/c.go": "package  c\n",
	})), "b.go: not as gofmt writes it")
}

func TestSyntax(t *testing.T) {
	expect(t, CheckSyntax(plant(t, map[string]string{"a.go": "package a\n", "b.go": "package a\nfunc {\n"})), "b.go: b.go:2:6")
}

func TestAPI(t *testing.T) {
	tree := plant(t, map[string]string{
		"internal/abi/abi.go": `package abi
type T struct { Other U }
type U struct{}
type S uint32
type S2 uint32
const OK2 S2 = 0
type G[X any] struct{ x X }
const OK S = 0
const Max = 3
func New() *T { return nil }
`,
		"gin/gin.go": `package gin
import (
	"context"
	"errors"
	"m/internal/abi"
)
type T = abi.T
type Status = abi.S
type GT = abi.G[T]
const OK = abi.OK
var Zero = abi.New()
const Max = abi.Max
var ErrX = errors.New("x")
type C struct { t abi.T; D T }
func (c *C) Get(ctx context.Context) (T, error) { return c.t, nil }
func (c *C) hidden(u abi.U) {}
func F(f func(*T) []Status) error { return nil }
`,
		"gin/bad.go": `package gin
import "m/internal/abi"
const Bad1 = abi.OK2
var Bad2 = []abi.U{}
func Bad3(x int, f func(map[string][]*abi.U)) {}
type Bad4 struct { F chan abi.U }
type Bad5 interface { M() abi.U }
func (c *Bad6) M(u ...abi.U) {}
type Bad6 struct { U int }
type Bad7 = []abi.U
type Bad8 = abi.G[abi.U]
func Bad9[X interface{ ~uint32 | abi.S }](x X) {}
var Bad10 T2[abi.U]
type T2[X any] struct{}
type Bad11 struct { abi.T }
`,
		"gin/other.go":        "//go:build windows\n\npackage gin\nimport \"m/internal/abi\"\nvar NotHere abi.T\n",
		"moe/moe.go":          "package moe\nimport \"m/gin\"\ntype M struct { W gin.T; S gin.Status }\nfunc New() gin.C { return gin.C{} }\n",
		"gin/internal/x/x.go": "package x\nimport \"m/internal/abi\"\nvar Fine abi.T\n",
		"cmd/top/top.go":      "package main\nimport \"m/internal/abi\"\nvar Fine abi.T\n",
		"gin/gin_test.go":     "package gin\nimport \"m/internal/abi\"\nvar Fine abi.T\n",
	})
	at := func(what, typ string) string {
		return "gin/bad.go:" + what + " names the internal type m/internal/abi." + typ
	}
	expect(t, CheckAPI(tree, func(dir string) bool { return !within(dir, "cmd") }),
		at("3: exported Bad1", "S2"), at("4: exported Bad2", "U"), at("5: exported Bad3", "U"), at("6: exported Bad4", "U"),
		at("7: exported Bad5", "U"), at("9: exported Bad6", "U"), at("10: exported Bad7", "U"), at("11: exported Bad8", "U"),
		at("12: exported Bad9", "S"), at("13: exported Bad10", "U"), at("15: exported Bad11", "T"))
}

func TestLoadRefusesNoModule(t *testing.T) {
	for _, fsys := range []fstest.MapFS{{}, {"go.mod": {Data: []byte("go 1.26\n")}}} {
		if _, err := Load(fsys); err == nil {
			t.Errorf("a tree with %d files was loaded (want an error for its go.mod)", len(fsys))
		}
	}
}
