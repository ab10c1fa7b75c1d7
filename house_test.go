// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"os"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/tools/house"
)

// floors is design.md, section 1: a folder imports only what stands on lower floors, or lower in the list of its own
// floor; a folder's children import it, never the reverse. Put a new folder below whatever imports it and above whatever
// it imports; one without a line of its own counts as part of the nearest folder above it that has one.
var floors = []house.Floor{
	{Number: 7, Folders: []house.Folder{
		{Path: "cmd/doorbell", Program: true},
		{Path: "cmd/gpuc", Program: true},
		{Path: "examples", Program: true},
		{Path: "plugins", Program: true},
		{Path: "bench", Program: true},
		{Path: "bench/kernels"},
		{Path: "bench/bulk"},
		{Path: "deploy", Program: true},
		{Path: "docs", Program: true},
		{Path: "tools", Program: true},
		{Path: "compiler"},
		{Path: "include"},
	}},
	{Number: 6, Folders: []house.Folder{
		{Path: "internal/moetest"},
		{Path: "moe"},
		{Path: "moe/ref"},
		{Path: "moe/routing"},
		{Path: "coll"},
	}},
	{Number: 5, Folders: []house.Folder{
		// Other plugins register by blank import, in the program that wants them.
		{Path: ".", Only: map[string][]string{"netplugin": {"ce", "devnic", "devnic/mlx5", "devnic/softnic", "devnic/wqe", "dma", "shm", "staged", "tcp"}}},
	}},
	{Number: 4, Folders: []house.Folder{
		{Path: "internal/gintest"},
		{Path: "internal/gdaki"},
		{Path: "internal/proxy"},
		{Path: "internal/proxy/model"},
		{Path: "gin"},
	}},
	{Number: 3, Folders: []house.Folder{
		{Path: "netplugin"},
		{Path: "netplugin/shm"},
		{Path: "netplugin/tcp"},
		{Path: "netplugin/staged"},
		{Path: "netplugin/dma"},
		{Path: "netplugin/verbs"},
		{Path: "netplugin/fault"},
		{Path: "netplugin/plugintest"},
		{Path: "netplugin/devnic"},
		{Path: "netplugin/devnic/mlx5"},
		{Path: "netplugin/devnic/softnic"},
		{Path: "netplugin/devnic/wqe"},
	}},
	{Number: 2, Folders: []house.Folder{
		{Path: "internal/device/cuda/cudatest"},
		{Path: "internal/device"},
		{Path: "internal/device/soft"},
		{Path: "internal/device/cuda"},
		{Path: "internal/bootstrap"},
		{Path: "internal/launchenv"},
		{Path: "internal/topo"},
	}},
	{Number: 1, Folders: []house.Folder{
		{Path: "internal/stats"},
		{Path: "internal/netif"},
		{Path: "internal/testenv"},
		{Path: "internal/abi"},
		{Path: "internal/abi/abigen"},
		{Path: "gpu"},
		{Path: "internal/lockstep"},
		{Path: "internal/num"},
		{Path: "internal/env"},
		{Path: "internal/sys"},
	}},
}

// foreign is what the library (floors 1 to 6) may import from outside; see design.md section 9.
var foreign = []string{"golang.org/x/sys", "github.com/ebitengine/purego"}

// device says what device code may import. What gpu has beyond arithmetic is for its CPU bodies: goroutines' scheduling
// (runtime), barriers and pools (sync), ordered memory (sync/atomic), the clock (time), addresses (unsafe, in its unsafe
// file alone).
var device = []house.DeviceRule{
	{
		Name:    "a file of kernels",
		Match:   house.Kernels,
		Allowed: []string{"math", "math/bits", "./gpu", "./gin", "./internal/abi", "./internal/num"},
	},
	{
		Name:    "gpu",
		Match:   func(p string) bool { return strings.HasPrefix(p, "gpu/") },
		Allowed: []string{"math", "math/bits", "runtime", "slices", "sync", "sync/atomic", "time", "unsafe", "./internal/lockstep", "./internal/num", "./internal/sys"},
	},
	{
		Name:    "gin",
		Match:   func(p string) bool { return strings.HasPrefix(p, "gin/") },
		Allowed: []string{"math", "math/bits", "./gpu", "./internal/abi", "./internal/num", "./netplugin/devnic/wqe"},
	},
}

const (
	maxLines       = 500 // in a file
	maxUnsafeLines = 8   // in a function of an unsafe file
)

// library reports whether a folder is of the library: what other modules link, on floors 1 to 6.
func library(dir string) bool {
	n, ok := house.FloorOf(floors, dir)
	return ok && n < 7
}

// pure reports whether a folder builds without a C compiler, as all do but plugins.
func pure(dir string) bool { return dir != "plugins" && !strings.HasPrefix(dir, "plugins/") }

// variables lists the names of the declared environment variables.
func variables() []string {
	var names []string
	for _, v := range env.All() {
		names = append(names, v.Name)
	}
	return names
}

func TestHouse(t *testing.T) {
	tree, err := house.Load(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.Files) < 10 {
		t.Fatalf("only %d source files were found (want the whole module)", len(tree.Files))
	}
	for _, c := range []struct {
		name  string
		check func(*house.Tree) []house.Finding
	}{
		{"syntax", house.CheckSyntax},
		{"floors", func(t *house.Tree) []house.Finding { return house.CheckFloors(t, floors) }},
		{"imports", func(t *house.Tree) []house.Finding { return house.CheckImports(t, library, foreign) }},
		{"http", func(t *house.Tree) []house.Finding { return house.CheckForbidden(t, library, "net/http") }},
		{"purego", func(t *house.Tree) []house.Finding {
			return house.CheckForbidden(t, func(dir string) bool { return dir != "internal/sys/ffi" }, "github.com/ebitengine/purego")
		}},
		{"cgo", func(t *house.Tree) []house.Finding { return house.CheckForbidden(t, pure, "C") }},
		{"device", func(t *house.Tree) []house.Finding { return house.CheckDevice(t, device) }},
		{"kernels", house.CheckKernels},
		{"env", func(t *house.Tree) []house.Finding { return house.CheckEnv(t, "internal/env", variables()) }},
		{"unsafe", func(t *house.Tree) []house.Finding { return house.CheckUnsafe(t, maxUnsafeLines) }},
		{"spdx", func(t *house.Tree) []house.Finding { return house.CheckSPDX(t, "Apache-2.0") }},
		{"size", func(t *house.Tree) []house.Finding { return house.CheckSize(t, maxLines) }},
		{"sleep", house.CheckSleep},
		{"format", house.CheckFormat},
		{"api", func(t *house.Tree) []house.Finding { return house.CheckAPI(t, library) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, f := range c.check(tree) {
				t.Error(f)
			}
		})
	}
}
