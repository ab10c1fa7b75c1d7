// SPDX-License-Identifier: Apache-2.0

package env

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write testdata/vars.txt anew")

func TestListingIsGolden(t *testing.T) {
	golden := filepath.Join("testdata", "vars.txt")
	got := Listing()
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the listing differs from %s: run `go test ./internal/env -update` and review the change\n%s", golden, got)
	}
}

func TestDefaults(t *testing.T) {
	none := From(nil)
	if d, err := Timeout.Get(none); err != nil || d != 100*time.Second {
		t.Errorf("Timeout: %v, %v (want 1m40s)", d, err)
	}
	if s, err := Progress.Get(none); err != nil || s != "auto" {
		t.Errorf("Progress: %q, %v (want auto)", s, err)
	}
	if b, err := Long.Get(none); err != nil || b {
		t.Errorf("Long: %v, %v (want false)", b, err)
	}
	if n, err := QueueDepth.Get(From(map[string]string{"DOORBELL_QUEUE_DEPTH": ""})); err != nil || n != 1024 {
		t.Errorf("QueueDepth set to nothing: %v, %v (want the default)", n, err)
	}
}

// get reads a variable of any type, so that one table serves them all.
func get[T any](v Var[T]) func(Lookup) (any, error) {
	return func(l Lookup) (any, error) { return v.Get(l) }
}

func TestAccepted(t *testing.T) {
	for _, c := range []struct {
		name  string
		get   func(Lookup) (any, error)
		value string
		want  any
	}{
		{"DOORBELL_RANK", get(Rank), "3", 3},
		{"DOORBELL_RANK", get(Rank), "0", 0},
		{"DOORBELL_ADDR", get(Addr), "node7:4711", "node7:4711"},
		{"DOORBELL_PROGRESS", get(Progress), "assisted", "assisted"},
		{"DOORBELL_NET", get(Net), "fault+shm", "fault+shm"},
		{"DOORBELL_TIMEOUT", get(Timeout), "250ms", 250 * time.Millisecond},
		{"DOORBELL_QUEUE_DEPTH", get(QueueDepth), "65536", 65536},
		{"DOORBELL_LONG", get(Long), "1", true},
		{"DOORBELL_LONG", get(Long), "False", false},
		{"DOORBELL_SEED", get(Seed), "0xffffffffffffffff", uint64(math.MaxUint64)},
	} {
		got, err := c.get(From(map[string]string{c.name: c.value}))
		if err != nil || got != c.want {
			t.Errorf("%s=%s: got %v, %v (want %v)", c.name, c.value, got, err, c.want)
		}
	}
}

// TestRefused holds that an error names the variable, the value and what is accepted.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name     string
		get      func(Lookup) (any, error)
		value    string
		accepted string
	}{
		{"DOORBELL_RANK", get(Rank), "-1", "from 0"},
		{"DOORBELL_RANK", get(Rank), "three", "a whole number"},
		{"DOORBELL_RANK", get(Rank), "99999999999999999999", "2147483647"},
		{"DOORBELL_WORLD_SIZE", get(WorldSize), "0", "from 1"},
		{"DOORBELL_QUEUE_DEPTH", get(QueueDepth), "1000", "power of two"},
		{"DOORBELL_QUEUE_DEPTH", get(QueueDepth), "131072", "65536"},
		{"DOORBELL_GIN_BACKEND", get(Backend), "Proxy", "auto, proxy, gdaki"},
		{"DOORBELL_TIMEOUT", get(Timeout), "30", "with its unit"},
		{"DOORBELL_TIMEOUT", get(Timeout), "-1s", "positive"},
		{"DOORBELL_REQUIRE_TOKEN", get(RequireToken), "yes", "1, true, 0, false"},
		{"DOORBELL_SEED", get(Seed), "-1", "2^64-1"},
	} {
		_, err := c.get(From(map[string]string{c.name: c.value}))
		if err == nil {
			t.Errorf("%s=%s: accepted", c.name, c.value)
			continue
		}
		for _, part := range []string{c.name, fmt.Sprintf("%q", c.value), c.accepted} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s=%s: the error %q does not say %s", c.name, c.value, err, part)
			}
		}
	}
}

func TestNotSet(t *testing.T) {
	if Rank.IsSet(From(nil)) || Rank.IsSet(From(map[string]string{"DOORBELL_RANK": ""})) {
		t.Error("Rank counts as set where it has no value")
	}
	if !Rank.IsSet(From(map[string]string{"DOORBELL_RANK": "x"})) {
		t.Error("Rank counts as not set where it has a value")
	}
	if _, err := Rank.Get(From(nil)); err == nil || !strings.Contains(err.Error(), "not set") {
		t.Errorf("Rank without a value: error %v (want one that says not set)", err)
	}
}

// TestProcessEnvironment holds that a nil Lookup reads the process's own environment.
func TestProcessEnvironment(t *testing.T) {
	t.Setenv("DOORBELL_QUEUE_DEPTH", "64")
	if n, err := QueueDepth.Get(nil); err != nil || n != 64 {
		t.Errorf("got %v, %v (want 64)", n, err)
	}
}

func TestUnknown(t *testing.T) {
	got := Unknown([]string{"PATH=/bin", "DOORBELL_TIMEUOT=3s", "DOORBELL_TIMEOUT=3s", "DOORBELL_A", "DOORBELL_A=1", "XDOORBELL_B=1"})
	if want := []string{"DOORBELL_A", "DOORBELL_TIMEUOT"}; !slices.Equal(got, want) {
		t.Errorf("got %q (want %q)", got, want)
	}
}

func TestDeclareRefusesMistakes(t *testing.T) {
	any := func(s string) (string, error) { return s, nil }
	for name, declaration := range map[string]func(){
		"twice":       func() { declare(Info{Name: Rank.Name(), Help: "h"}, any) },
		"prefix":      func() { declare(Info{Name: "RANK", Help: "h"}, any) },
		"no help":     func() { declare(Info{Name: "DOORBELL_TEST"}, any) },
		"bad default": func() { intVar("DOORBELL_TEST", "x", 0, 1, false, "h") },
	} {
		n := len(registry)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: declared without complaint", name)
				}
			}()
			declaration()
		}()
		registry = registry[:n]
	}
}

func TestParseBytes(t *testing.T) {
	units := map[string]int64{"": 1, "B": 1, "K": 1 << 10, "kb": 1 << 10, "KiB": 1 << 10, "M": 1 << 20, "MiB": 1 << 20, "g": 1 << 30, "TB": 1 << 40}
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom(slices.Sorted(func(yield func(string) bool) {
			for u := range units {
				if !yield(u) {
					return
				}
			}
		})).Draw(t, "unit")
		n := rapid.Int64Range(0, math.MaxInt64/units[unit]).Draw(t, "n")
		if got, err := ParseBytes(fmt.Sprint(n, unit)); err != nil || got != n*units[unit] {
			t.Fatalf("%d%s: got %d, %v (want %d)", n, unit, got, err, n*units[unit])
		}
	})
	for _, s := range []string{"", "K", "-1", "1.5K", "1 K", "4Ki4", "1X", "1KK", "1BK", "9223372036854775808", "8388608T", "+1"} {
		if n, err := ParseBytes(s); err == nil {
			t.Errorf("%q was read as %d (want an error)", s, n)
		}
	}
}

// TestBytesVar declares a variable of its own, since none of this type is registered yet.
func TestBytesVar(t *testing.T) {
	defer func(n int) { registry = registry[:n] }(len(registry))
	v := bytesVar("DOORBELL_TEST", "64K", 1, 1<<20, "h")
	if n, err := v.Get(From(nil)); err != nil || n != 65536 {
		t.Errorf("default: %v, %v (want 65536)", n, err)
	}
	if _, err := v.Get(From(map[string]string{"DOORBELL_TEST": "2M"})); err == nil || !strings.Contains(err.Error(), "1048576") {
		t.Errorf("2M: error %v (want one that names the limit)", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"4K", "100s", "1", "true", "0x10", "", "K", "999999999999T"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseBytes(s); err == nil && n < 0 {
			t.Errorf("%q is %d bytes", s, n)
		}
		l := func(string) (string, bool) { return s, true }
		if d, err := Timeout.Get(l); err == nil && d <= 0 {
			t.Errorf("%q is a timeout of %v", s, d)
		}
		if n, err := QueueDepth.Get(l); err == nil && (n < 2 || n > 1<<16 || n&(n-1) != 0) {
			t.Errorf("%q is a depth of %d", s, n)
		}
	})
}

// TestGINBackend: ours goes before NCCL's, its code's name before the paper's, and each is said that was set.
func TestGINBackend(t *testing.T) {
	ours, code, paper := "DOORBELL_GIN_BACKEND", "NCCL_GIN_TYPE", "NCCL_GIN_BACKEND"
	for _, c := range []struct {
		set  map[string]string
		want Chosen
	}{
		{nil, Chosen{Value: "auto"}},
		{map[string]string{ours: "", code: "", paper: ""}, Chosen{Value: "auto"}},
		{map[string]string{ours: "gdaki", code: "2", paper: "proxy"}, Chosen{"gdaki", ours + "=gdaki", []string{code + "=2", paper + "=proxy"}}},
		{map[string]string{ours: "auto", code: "4"}, Chosen{"auto", ours + "=auto", []string{code + "=4"}}},
		{map[string]string{code: "3", paper: "nonsense"}, Chosen{"gdaki", code + "=3", []string{paper + "=nonsense"}}},
		{map[string]string{code: "2"}, Chosen{Value: "proxy", By: code + "=2"}},
		{map[string]string{code: "-1", paper: "gdaki"}, Chosen{"auto", code + "=-1", []string{paper + "=gdaki"}}},
		{map[string]string{paper: "GDAKI"}, Chosen{Value: "gdaki", By: paper + "=GDAKI"}},
		{map[string]string{paper: "proxy"}, Chosen{Value: "proxy", By: paper + "=proxy"}},
	} {
		if got, err := GINBackend(From(c.set)); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: got %+v, %v (want %+v)", c.set, got, err, c.want)
		}
	}
	for name, c := range map[string]struct{ value, accepted string }{
		ours: {"Proxy", "auto, proxy, gdaki"}, code: {"4", "-1 (auto), 2 (proxy), 3 (gdaki)"}, paper: {"auto", "proxy, gdaki"},
	} {
		_, err := GINBackend(From(map[string]string{name: c.value}))
		for _, part := range []string{name, fmt.Sprintf("%q", c.value), c.accepted} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s=%s: the error %v does not say %s", name, c.value, err, part)
			}
		}
	}
}
