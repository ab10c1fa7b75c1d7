// SPDX-License-Identifier: Apache-2.0

package gdaki

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/netplugin/devnic"
)

// newNIC is a provider of real NICs that no program has used.
type newNIC struct{ probed int }

func (*newNIC) Name() string                           { return "new" }
func (*newNIC) Open(devnic.Config) (devnic.NIC, error) { return nil, errors.New("not opened here") }
func (n *newNIC) Probe() error                         { n.probed++; return nil }
func (*newNIC) Untried()                               {}

// untried is the one that there is.
var untried newNIC

func init() { devnic.Register(&untried) }

// TestLookForUntried: a real NIC that no program has used yet is asked for, and taken, by a forced gdaki and by its name, and auto
// does not even ask.
func TestLookForUntried(t *testing.T) {
	n := &untried
	for _, c := range []struct {
		backend, nic string
		taken        bool
	}{{"auto", "", false}, {"auto", "other", false}, {"auto", "new", true}, {"gdaki", "", true}, {"gdaki", "new", true}} {
		n.probed = 0
		w := Wish{Backend: c.backend, NIC: c.nic, NICs: Look(c.backend, c.nic)}
		got, err := Choose([]Wish{w, w})
		if taken := got == (Choice{NIC: "new", Real: true}); err != nil || taken != c.taken || (n.probed > 0) != c.taken {
			t.Errorf("%+v: %+v, %v, asked %d times", c, got, err, n.probed)
		}
	}
}

// TestChoose: what comes of what ranks ask for and have.
func TestChoose(t *testing.T) {
	soft, mlx5, none := Has{Name: "softnic"}, Has{Name: "mlx5", Real: true}, Has{Name: "mlx5", Real: true, Lacks: "no device"}
	wish := func(backend, nic, net string, has ...Has) Wish {
		return Wish{Backend: backend, NIC: nic, Net: net, NICs: has}
	}
	two := func(w Wish) []Wish { return []Wish{w, w} }
	for name, c := range map[string]struct {
		all  []Wish
		want Choice
		err  []string // what it says, if it is one
	}{
		"auto, none real":      {two(wish("auto", "", "", soft)), Choice{}, nil},
		"auto, all real":       {two(wish("auto", "", "", mlx5, soft)), Choice{NIC: "mlx5", Real: true}, nil},
		"auto, one not":        {[]Wish{wish("auto", "", "", mlx5, soft), wish("auto", "", "", none, soft)}, Choice{Why: "NIC mlx5: rank 1: no device"}, nil},
		"auto, one without it": {[]Wish{wish("auto", "", "", mlx5, soft), wish("auto", "", "", soft)}, Choice{Why: "NIC mlx5: rank 1: none of that name, there are softnic"}, nil},
		"auto, net named":      {two(wish("auto", "", "fault+tcp", mlx5, soft)), Choice{Why: "NIC mlx5: it sends by itself, and network fault+tcp was asked for"}, nil},
		"auto, two real":       {two(wish("auto", "", "", Has{Name: "zzz", Real: true}, mlx5, soft)), Choice{NIC: "mlx5", Real: true}, nil},
		"auto, softnic named":  {two(wish("auto", "softnic", "", mlx5, soft)), Choice{Why: "NIC softnic: emulated, and auto takes none such"}, nil},
		"auto, real named":     {two(wish("auto", "mlx5", "", mlx5, soft)), Choice{NIC: "mlx5", Real: true}, nil},
		"auto, named lacks":    {two(wish("auto", "mlx5", "", none, soft)), Choice{Why: "NIC mlx5: ranks 0-1: no device"}, nil},
		"proxy":                {two(wish("proxy", "", "")), Choice{}, nil},
		"gdaki, none real":     {two(wish("gdaki", "", "", soft)), Choice{NIC: "softnic"}, nil},
		"gdaki, all real":      {two(wish("gdaki", "", "", mlx5, soft)), Choice{NIC: "mlx5", Real: true}, nil},
		"gdaki, lacks":         {two(wish("gdaki", "", "", none, soft)), Choice{NIC: "softnic", Why: "NIC mlx5: ranks 0-1: no device"}, nil},
		"gdaki, net named":     {two(wish("gdaki", "", "tcp", mlx5, soft)), Choice{NIC: "softnic", Why: "NIC mlx5: it sends by itself, and network tcp was asked for"}, nil},
		"gdaki, softnic named": {two(wish("gdaki", "softnic", "tcp", mlx5, soft)), Choice{NIC: "softnic"}, nil},
		"gdaki, named lacks":   {[]Wish{wish("gdaki", "mlx5", "", mlx5), wish("gdaki", "mlx5", "", none)}, Choice{}, []string{"backend gdaki", "NIC mlx5", "rank 1: no device"}},
		"gdaki, named and net": {two(wish("gdaki", "mlx5", "shm", mlx5)), Choice{}, []string{"NIC mlx5", "network shm"}},
		"gdaki, not there":     {two(wish("gdaki", "none", "", mlx5, soft)), Choice{}, []string{"NIC none", "ranks 0-1", "mlx5, softnic"}},
	} {
		got, err := Choose(c.all)
		if got != c.want || (err != nil) != (c.err != nil) {
			t.Errorf("%s: %+v, %v (want %+v, %q)", name, got, err, c.want, c.err)
		}
		for _, s := range c.err {
			if err != nil && !strings.Contains(err.Error(), s) {
				t.Errorf("%s: the error does not say %q: %v", name, s, err)
			}
		}
	}
	all := make([]Wish, 6)
	for r := range all {
		all[r] = wish("auto", "", "")
	}
	all[3].Backend, all[3].By = "proxy", "NCCL_GIN_TYPE=2"
	if _, err := Choose(all); !errors.Is(err, ErrDiffer) || err.Error() != "backend: ranks 0-2, 4-5: auto; rank 3: proxy (NCCL_GIN_TYPE=2): they must agree" {
		t.Error(err)
	}
	if _, err := Choose([]Wish{wish("gdaki", "softnic", "", soft), wish("gdaki", "", "", soft)}); !errors.Is(err, ErrDiffer) || err.Error() != "NIC: rank 0: softnic; rank 1: none named: they must agree" {
		t.Error(err)
	}
}

// TestChooseAlike: whatever ranks ask for and have, all of them decide alike; conflicts are refused with each rank's word, what
// is forced is taken or refused, and kernels drive a NIC only where each rank has it.
func TestChooseAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backend, nic, net := rapid.SampledFrom([]string{"auto", "proxy", "gdaki"}), rapid.SampledFrom([]string{"", "", "softnic", "a", "b"}), rapid.SampledFrom([]string{"", "", "tcp"})
		lacks := rapid.SampledFrom([]string{"", "", "", "no device", "an old driver"})
		like := Wish{Backend: backend.Draw(t, "backend"), NIC: nic.Draw(t, "nic"), Net: net.Draw(t, "net")}
		all := make([]Wish, rapid.IntRange(1, 6).Draw(t, "ranks"))
		for r := range all {
			w := like
			if rapid.IntRange(0, 9).Draw(t, "differs") == 0 {
				w.Backend, w.NIC = backend.Draw(t, "backend"), nic.Draw(t, "nic")
			}
			w.By = fmt.Sprint("word of ", rapid.IntRange(0, 1).Draw(t, "by"))
			for _, name := range []string{"a", "b"} {
				if rapid.IntRange(0, 9).Draw(t, "there") > 0 {
					w.NICs = append(w.NICs, Has{Name: name, Real: true, Lacks: lacks.Draw(t, "lacks")})
				}
			}
			w.NICs = append(w.NICs, Has{Name: "softnic"})
			all[r] = w
		}
		c, err := Choose(all)
		for r := range all { // as each rank has it from the others
			text, jerr := json.Marshal(all)
			var view []Wish
			if jerr = errors.Join(jerr, json.Unmarshal(text, &view)); jerr != nil {
				t.Fatal(jerr)
			}
			if c2, err2 := Choose(view); c2 != c || fmt.Sprint(err2) != fmt.Sprint(err) {
				t.Fatalf("rank %d decides for %+v, %v, another for %+v, %v", r, c2, err2, c, err)
			}
		}
		backends, nics := map[string]bool{}, map[string]bool{}
		for _, w := range all {
			backends[w.Backend], nics[w.NIC] = true, true
		}
		if differ := len(backends) > 1 || len(nics) > 1; differ != errors.Is(err, ErrDiffer) {
			t.Fatalf("%v, %v: %v", backends, nics, err)
		}
		if len(backends) > 1 {
			for _, w := range all {
				if !strings.Contains(err.Error(), w.Backend+" ("+w.By+")") {
					t.Fatalf("a rank's word is not in: %v", err)
				}
			}
		}
		if err != nil {
			if c != (Choice{}) || all[0].Backend != "gdaki" && !errors.Is(err, ErrDiffer) {
				t.Fatalf("%+v with %v, of %+v", c, err, all)
			}
			return
		}
		usable := func(name string) bool {
			for _, w := range all {
				ok := false
				for _, h := range w.NICs {
					ok = ok || h == Has{Name: name, Real: true}
				}
				if !ok {
					return false
				}
			}
			return like.Net == ""
		}
		switch {
		case c.Real != (c.NIC == "a" || c.NIC == "b"), c.Real && !usable(c.NIC):
			t.Fatalf("%+v of %+v", c, all)
		case all[0].Backend == "proxy" && c.NIC != "", all[0].Backend == "gdaki" && c.NIC == "", all[0].Backend == "auto" && c.NIC == "softnic":
			t.Fatalf("%+v of %+v", c, all)
		case all[0].Backend != "proxy" && all[0].NIC == "" && (usable("a") || usable("b")) != c.Real:
			t.Fatalf("a real NIC: %+v of %+v", c, all)
		case all[0].NIC != "" && c.NIC != "" && c.NIC != all[0].NIC:
			t.Fatalf("another NIC than was named: %+v of %+v", c, all)
		}
	})
}
