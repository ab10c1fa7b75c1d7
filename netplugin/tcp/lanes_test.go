// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestChooseLanes(t *testing.T) {
	p := func(local, remote string, mbits, mtu int) path {
		return path{local: local, remote: remote, mbits: mbits, mtu: mtu}
	}
	host := path{local: "lo", remote: "lo", mtu: 65536, within: true}
	for name, c := range map[string]struct {
		paths []path
		most  int
		want  []int
		why   string // of the last path, if it is left out
	}{
		"none":                 {nil, 4, nil, ""},
		"one":                  {[]path{p("a", "a", 0, 1500)}, 4, []int{0}, ""},
		"rails":                {[]path{p("a", "a", 100_000, 9000), p("b", "b", 100_000, 9000)}, 4, []int{0, 1}, ""},
		"crossed rails":        {[]path{p("a", "b", 100_000, 9000), p("b", "a", 100_000, 9000)}, 4, []int{0, 1}, ""},
		"management":           {[]path{p("m", "m", 1000, 1500), p("b", "b", 100_000, 9000)}, 4, []int{1}, ""},
		"management, last":     {[]path{p("b", "b", 100_000, 9000), p("m", "m", 1000, 1500)}, 4, []int{0}, "1000 Mbit/s, less than half of lane 0's 100000"},
		"half as fast":         {[]path{p("a", "a", 10_000, 1500), p("b", "b", 5000, 1500)}, 4, []int{0, 1}, ""},
		"less than half":       {[]path{p("a", "a", 10_000, 1500), p("b", "b", 4999, 1500)}, 4, []int{0}, "less than half"},
		"unknown":              {[]path{p("a", "a", 0, 1500), p("b", "b", 0, 1500)}, 4, []int{0, 1}, ""},
		"one unknown":          {[]path{p("b", "b", 0, 1500), p("a", "a", 10, 1500)}, 4, []int{1}, ""},
		"one unknown, last":    {[]path{p("a", "a", 10, 1500), p("b", "b", 0, 1500)}, 4, []int{0}, "its speed is not known, that of lane 0 is 10 Mbit/s"},
		"tunnel":               {[]path{p("a", "a", 0, 1500), p("vx", "vx", 0, 1450)}, 4, []int{0}, "may be a tunnel: it takes packets of 1450 bytes, lane 0 of 1500"},
		"tunnel, first":        {[]path{p("vx", "vx", 25_000, 8951), p("a", "a", 25_000, 9001)}, 4, []int{1}, ""},
		"one way out":          {[]path{p("a", "a", 0, 1500), p("a", "b", 0, 1500)}, 4, []int{0}, "it leaves by a, as lane 0"},
		"one way in":           {[]path{p("a", "a", 0, 1500), p("b", "a", 0, 1500)}, 4, []int{0}, "it arrives at a, as lane 0"},
		"shares with the next": {[]path{p("a", "a", 9, 1500), p("b", "b", 8, 1500), p("c", "b", 7, 1500)}, 4, []int{0, 1}, "it arrives at b, as lane 1"},
		"most":                 {[]path{p("a", "a", 1, 1500), p("b", "b", 3, 1500), p("c", "c", 2, 1500)}, 2, []int{1, 2}, ""},
		"most, told":           {[]path{p("a", "a", 3, 1500), p("b", "b", 3, 1500)}, 1, []int{0}, "at most 1 lanes are asked for"},
		"within the host":      {[]path{host, host}, 4, []int{0}, "within a host one lane is enough"},
	} {
		lanes, why := chooseLanes(c.paths, c.most)
		said := ""
		if len(why) > 0 {
			said = why[len(why)-1]
		}
		if !slices.Equal(lanes, c.want) || !strings.Contains(said, c.why) || c.why == "" && slices.Contains(lanes, len(c.paths)-1) && said != "" {
			t.Errorf("%s: lanes %v, %q; want %v, %q", name, lanes, why, c.want, c.why)
		}
	}
}

func TestJoin(t *testing.T) {
	for _, c := range []struct{ local, remote, want int }{{0, 0, 0}, {10, 0, 10}, {0, 10, 10}, {10, 25, 10}, {25, 10, 10}} {
		if got := join("a", c.local, 9000, peerInterface{Name: "b", Mbits: c.remote, MTU: 1500}, false); got.mbits != c.want || got.mtu != 1500 || got.local != "a" || got.remote != "b" {
			t.Errorf("%d to %d Mbit/s: %+v, want %d", c.local, c.remote, got, c.want)
		}
	}
}

// dumbLanes does what the words of chooseLanes say, one lane after another, with a look at all paths for each.
func dumbLanes(paths []path, most int) (lanes []int) {
	better := func(a, b int) bool {
		if paths[a].mbits != paths[b].mbits {
			return paths[a].mbits > paths[b].mbits
		}
		if paths[a].mtu != paths[b].mtu {
			return paths[a].mtu > paths[b].mtu
		}
		return a < b
	}
	for len(lanes) < max(most, 1) {
		best := -1
		for i, p := range paths {
			ok := !slices.Contains(lanes, i)
			for _, l := range lanes {
				q := paths[l]
				if p.local == q.local || p.remote == q.remote || p.within || q.within {
					ok = false
				}
			}
			if len(lanes) > 0 {
				first := paths[lanes[0]]
				if (p.mbits == 0) != (first.mbits == 0) || float64(p.mbits) < float64(first.mbits)/2 || p.mtu < first.mtu {
					ok = false
				}
			}
			if ok && (best < 0 || better(i, best)) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		lanes = append(lanes, best)
	}
	return lanes
}

func TestChooseLanesAgainstWords(t *testing.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	one := rapid.Custom(func(t *rapid.T) path {
		return path{
			local: name.Draw(t, "local"), remote: name.Draw(t, "remote"), mbits: rapid.SampledFrom([]int{0, 0, 1000, 4999, 5000, 10_000, 10_000}).Draw(t, "speed"),
			mtu: rapid.SampledFrom([]int{1450, 1500, 1500, 9000}).Draw(t, "mtu"), within: rapid.IntRange(0, 9).Draw(t, "within") == 0,
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		paths := rapid.SliceOfN(one, 0, 8).Draw(t, "paths")
		most := rapid.IntRange(1, 5).Draw(t, "most")
		lanes, why := chooseLanes(paths, most)
		if want := dumbLanes(paths, most); !slices.Equal(lanes, want) {
			t.Fatalf("lanes %v, want %v", lanes, want)
		}
		for i := range paths {
			if (why[i] == "") != slices.Contains(lanes, i) {
				t.Fatalf("path %d of lanes %v: %q", i, lanes, why[i])
			}
		}
		if again, _ := chooseLanes(paths, most); fmt.Sprint(again) != fmt.Sprint(lanes) {
			t.Fatalf("lanes %v, and then %v", lanes, again)
		}
	})
}
