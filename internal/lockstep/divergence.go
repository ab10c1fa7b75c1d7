// SPDX-License-Identifier: Apache-2.0

package lockstep

import (
	"fmt"
	"math/bits"
	"strings"
)

// Divergence is a warp whose lanes wait for each other at different places, or for lanes that have ended: on a GPU it
// would hang, or go on with what is not defined.
type Divergence struct {
	Groups []Group
}

// Group is the lanes that are at one place.
type Group struct {
	Lanes uint32 // a bit each
	Op    string // what they wait in; "" when they have ended
	At    string // file:line of the call, and of those that led to it, innermost first
}

func (d *Divergence) Error() string {
	var parts []string
	for _, g := range d.Groups {
		if g.Op == "" {
			parts = append(parts, lanes(g.Lanes)+" have ended")
		} else {
			parts = append(parts, fmt.Sprintf("%s wait in %s at %s", lanes(g.Lanes), g.Op, g.At))
		}
	}
	return "the lanes of a warp do not meet: " + strings.Join(parts, "; ")
}

// lanes lists them as in "lanes 0-3,7".
func lanes(set uint32) string {
	var parts []string
	for set != 0 {
		from := bits.TrailingZeros32(set)
		n := bits.TrailingZeros32(^(set >> from))
		if n == 1 {
			parts = append(parts, fmt.Sprint(from))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", from, from+n-1))
		}
		set &^= uint32((1<<n - 1) << from)
	}
	return "lanes " + strings.Join(parts, ",")
}

// together says whether all lanes wait in one operation at one place.
//
//go:norace
func (w *Warp) together() bool {
	first := &w.at[0]
	if w.in != all {
		return false
	}
	for i := 1; i < Lanes; i++ {
		a := &w.at[i]
		if a.op != first.op || !a.callee.same(&first.callee) {
			return false
		}
	}
	return true
}

// divergence says where each lane is. None of them runs.
//
//go:norace
func (w *Warp) divergence() *Divergence {
	d := &Divergence{}
	for i := range w.at {
		g := Group{Lanes: 1 << i}
		if w.in&g.Lanes != 0 {
			g.Op, g.At = w.at[i].op, w.at[i].callee.String()
		}
		d.add(g)
	}
	return d
}

func (d *Divergence) add(g Group) {
	for i := range d.Groups {
		if o := &d.Groups[i]; o.Op == g.Op && o.At == g.At {
			o.Lanes |= g.Lanes
			return
		}
	}
	d.Groups = append(d.Groups, g)
}
