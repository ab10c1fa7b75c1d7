// SPDX-License-Identifier: Apache-2.0

package gdaki

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/doorbell-net/doorbell/netplugin/devnic"
)

// Wish is what drives the network as one rank asks for it, and what the rank has. Ranks send it to each other.
type Wish struct {
	Backend string // auto, proxy or gdaki
	By      string // who says so, for messages
	NIC     string // a provider's name, empty for whichever
	Net     string // the network, empty unless it was named. A named one is used: the proxy's, or an emulated NIC's wire
	NICs    []Has  // by name; empty where Backend is proxy
}

// Has is a provider of NICs that a rank has.
type Has struct {
	Name  string
	Real  bool
	Lacks string // why a real one cannot be had
}

// Look lists the providers of this process that a rank may take which asks for that backend and NIC, and asks those of real NICs for
// one. One that no program has used yet is left out, and opens no library, unless the backend is gdaki or it is named.
func Look(backend, nic string) (all []Has) {
	for _, p := range devnic.Providers() {
		if _, untried := p.(devnic.Untried); untried && backend != "gdaki" && p.Name() != nic {
			continue
		}
		h := Has{Name: p.Name()}
		if r, ok := p.(devnic.Prober); ok {
			h.Real = true
			if err := r.Probe(); err != nil {
				h.Lacks = err.Error()
			}
		}
		all = append(all, h)
	}
	return all
}

// Choice is what drives the network, the same on all ranks.
type Choice struct {
	NIC  string // that kernels drive; empty for the proxy
	Real bool   // it is one of hardware
	Why  string // why a real NIC was not taken, empty if there are none
}

// ErrDiffer is an error of Choose: the ranks ask for different things.
var ErrDiffer = errors.New("they must agree")

// emulated is the NIC that is always there.
const emulated = "softnic"

// Choose decides from what all ranks say, by rank, and from nothing else, so that all decide alike. Its errors name the ranks
// and what each of them said.
func Choose(all []Wish) (Choice, error) {
	w := all[0]
	if slices.ContainsFunc(all, func(o Wish) bool { return o.Backend != w.Backend }) {
		return Choice{}, fmt.Errorf("backend: %s: %w", tell(all, Wish.backend), ErrDiffer)
	}
	if slices.ContainsFunc(all, func(o Wish) bool { return o.NIC != w.NIC }) {
		return Choice{}, fmt.Errorf("NIC: %s: %w", tell(all, func(o Wish) string { return cmp.Or(o.NIC, "none named") }), ErrDiffer)
	}
	forced := w.Backend == "gdaki"
	switch {
	case w.Backend == "proxy":
		return Choice{}, nil
	case w.NIC != "":
		real, lacks := look(all, w.NIC)
		if lacks == "" && (real || forced) {
			return Choice{NIC: w.NIC, Real: real}, nil
		}
		why := "NIC " + w.NIC + ": " + cmp.Or(lacks, "emulated, and auto takes none such")
		if forced {
			return Choice{}, fmt.Errorf("backend %s: %s", w.backend(), why)
		}
		return Choice{Why: why}, nil
	}
	var why []string
	for _, name := range names(all) {
		switch real, lacks := look(all, name); {
		case !real:
		case lacks == "":
			return Choice{NIC: name, Real: true}, nil
		default:
			why = append(why, "NIC "+name+": "+lacks)
		}
	}
	c := Choice{Why: strings.Join(why, "; ")}
	if forced {
		c.NIC = emulated
	}
	return c, nil
}

func (w Wish) backend() string {
	if w.By == "" {
		return w.Backend
	}
	return w.Backend + " (" + w.By + ")"
}

// names are those of the NICs that any rank has, sorted.
func names(all []Wish) (list []string) {
	for _, w := range all {
		for _, h := range w.NICs {
			list = append(list, h.Name)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// look says whether a NIC is one of hardware, and which ranks lack what for it, empty if it can be had.
func look(all []Wish, name string) (real bool, lacks string) {
	lacks = tell(all, func(w Wish) string {
		i := slices.IndexFunc(w.NICs, func(h Has) bool { return h.Name == name })
		if i < 0 {
			return "none of that name, there are " + strings.Join(names([]Wish{w}), ", ")
		}
		real = real || w.NICs[i].Real
		return w.NICs[i].Lacks
	})
	if lacks == "" && real && all[0].Net != "" {
		lacks = "it sends by itself, and network " + all[0].Net + " was asked for"
	}
	return real, lacks
}

// tell puts together what ranks have to say: "ranks 0-2, 5: this; rank 3: that". Those with nothing to say are left out.
func tell(all []Wish, say func(Wish) string) string {
	var texts []string
	by := map[string][]int{}
	for r, w := range all {
		if text := say(w); text != "" {
			if by[text] == nil {
				texts = append(texts, text)
			}
			by[text] = append(by[text], r)
		}
	}
	for i, text := range texts {
		texts[i] = ranks(by[text]) + ": " + text
	}
	return strings.Join(texts, "; ")
}

// ranks names some, which rise: "rank 3", "ranks 0-2, 5".
func ranks(list []int) string {
	var runs []string
	for i := 0; i < len(list); {
		k := i + 1
		for k < len(list) && list[k] == list[k-1]+1 {
			k++
		}
		run := strconv.Itoa(list[i])
		if k-i > 1 {
			run += "-" + strconv.Itoa(list[k-1])
		}
		runs, i = append(runs, run), k
	}
	if len(list) == 1 {
		return "rank " + runs[0]
	}
	return "ranks " + strings.Join(runs, ", ")
}
