// SPDX-License-Identifier: Apache-2.0

package gin

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// members is a team, dumb: its ranks of the world in order, and the place of this rank among them.
type members struct {
	world []int32
	me    int
}

func pick(all members, keep func(place int) bool) (m members) {
	for i, w := range all.world {
		if keep(i) {
			if i == all.me {
				m.me = len(m.world)
			}
			m.world = append(m.world, w)
		}
	}
	return m
}

// checkTeam compares a team with its members.
func checkTeam(t *rapid.T, dc *DevComm, what string, team Team, m members) {
	if int(team.Ranks) != len(m.world) || int(team.Rank) != m.me {
		t.Fatalf("%s of rank %d: %+v, want place %d among %v", what, dc.Rank, team, m.me, m.world)
	}
	if w := team.WorldRank(dc, team.Rank); w != dc.Rank {
		t.Fatalf("%s: this rank is %d of the world, want %d", what, w, dc.Rank)
	}
	for p := int32(-2); p < team.Ranks+2; p++ {
		there := p >= 0 && int(p) < len(m.world)
		if team.Has(p) != there {
			t.Fatalf("%s %+v: Has(%d) is %v", what, team, p, !there)
		}
		if there && team.WorldRank(dc, p) != m.world[p] {
			t.Fatalf("%s %+v of rank %d: peer %d is rank %d of the world, want %d", what, team, dc.Rank, p, team.WorldRank(dc, p), m.world[p])
		}
	}
	for w := int32(-3); w < dc.Ranks+3; w++ {
		want := int32(slices.Index(m.world, w))
		if got := team.TeamRank(dc, w); got != want || team.Contains(dc, w) != (want >= 0) {
			t.Fatalf("%s %+v of rank %d: rank %d of the world is rank %d of it, want %d", what, team, dc.Rank, w, got, want)
		}
	}
}

// checkPart compares what two teams say of each other, part being one that Inner or Outer made of the other.
func checkPart(t *rapid.T, dc *DevComm, parent, part Team, all, some members) {
	var others []int32
	for place, w := range all.world {
		in := int32(slices.Index(some.world, w))
		if got := parent.RankIn(dc, part, int32(place)); got != in {
			t.Fatalf("rank %d of %+v is rank %d of %+v, want %d", place, parent, got, part, in)
		}
		if in < 0 {
			others = append(others, int32(place))
		} else if back := part.RankIn(dc, parent, in); back != int32(place) {
			t.Fatalf("rank %d of %+v is rank %d of %+v, want %d", in, part, back, parent, place)
		}
	}
	for i := int32(-2); i < int32(len(others))+3; i++ {
		want := int32(-1)
		if i >= 0 && int(i) < len(others) {
			want = others[i]
		}
		if got := RankInDifference(parent, part, i); got != want {
			t.Fatalf("number %d of %+v without %+v is %d, want %d of %v", i, parent, part, got, want, others)
		}
	}
}

// TestTeamRefused gives RankInDifference sets that are no parts, and RankIn ranks that are not there.
func TestTeamRefused(t *testing.T) {
	dc := &DevComm{Rank: 3, Ranks: 8, LSASize: 4, LSARank: 3}
	world := World(dc)
	for _, c := range []struct{ parent, subset Team }{
		{world, Team{}}, {Team{}, world}, {world.Outer(2), LSA(dc)}, {LSA(dc), world}, {world, Team{9, 3, 1}}, {world, Team{2, 1, 4}},
		{world, Team{2, 0, -1}}, {world.Outer(4), world.Outer(2)}, {world, Team{0, 0, 1}},
	} {
		for i := range int32(8) {
			if got := RankInDifference(c.parent, c.subset, i); got != -1 {
				t.Errorf("number %d of %+v without %+v is %d, want -1", i, c.parent, c.subset, got)
			}
		}
	}
	for _, p := range []int32{-1, 4, 1 << 30} {
		if got := LSA(dc).RankIn(dc, world, p); got != -1 {
			t.Errorf("rank %d of 4 is rank %d of the world, want -1", p, got)
		}
	}
	if r := (Team{}).TeamRank(dc, 3); r != -1 {
		t.Errorf("this rank is rank %d of no team, want -1", r)
	}
}

func TestTeamModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lsa := rapid.IntRange(1, 9).Draw(t, "LSA size")
		nodes := rapid.IntRange(1, 9).Draw(t, "nodes")
		rank := rapid.IntRange(0, lsa*nodes-1).Draw(t, "rank")
		dc := &DevComm{Rank: int32(rank), Ranks: int32(lsa * nodes), LSARank: int32(rank % lsa), LSASize: int32(lsa)}
		world := members{me: rank}
		for r := range lsa * nodes {
			world.world = append(world.world, int32(r))
		}
		node := func(place int) bool { return place/lsa == rank/lsa }
		rail := func(place int) bool { return place%lsa == rank%lsa }
		checkTeam(t, dc, "world", World(dc), world)
		checkTeam(t, dc, "LSA", LSA(dc), pick(world, node))
		checkTeam(t, dc, "rail", Rail(dc), pick(world, rail))
		for r := int32(-3); r < dc.Ranks+3; r++ {
			want := int32(slices.Index(pick(world, node).world, r))
			if got := LSARank(dc, r); got != want {
				t.Fatalf("rank %d of the world has LSA rank %d on rank %d, want %d", r, got, rank, want)
			}
		}
		// Parts of parts, as deep as they go.
		team, m := World(dc), world
		for range rapid.IntRange(0, 5).Draw(t, "depth") {
			var divisors []int
			for d := 1; d <= len(m.world); d++ {
				if len(m.world)%d == 0 {
					divisors = append(divisors, d)
				}
			}
			n := rapid.SampledFrom(divisors).Draw(t, "part")
			me, parent, all := m.me, team, m
			if rapid.Bool().Draw(t, "inner") {
				team, m = team.Inner(int32(n)), pick(m, func(p int) bool { return p/n == me/n })
				checkTeam(t, dc, "inner", team, m)
			} else {
				team, m = team.Outer(int32(n)), pick(m, func(p int) bool { return p%n == me%n })
				checkTeam(t, dc, "outer", team, m)
			}
			checkPart(t, dc, parent, team, all, m)
			checkPart(t, dc, World(dc), team, world, m)
		}
	})
}
