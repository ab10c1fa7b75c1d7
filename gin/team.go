// SPDX-License-Identifier: Apache-2.0

package gin

// Team is a regular set of ranks of the world: Ranks of them, Stride apart, this rank being number Rank. Each peer
// that a call names is a rank of the team given to it.
type Team struct{ Ranks, Rank, Stride int32 }

// World is the team of all ranks.
func World(dc *DevComm) Team { return Team{dc.Ranks, dc.Rank, 1} }

// LSA is the team of ranks that load and store each other's windows.
func LSA(dc *DevComm) Team { return Team{dc.LSASize, dc.LSARank, 1} }

// Rail is the team of ranks with the same LSA rank, one of each node.
func Rail(dc *DevComm) Team {
	return Team{dc.Ranks / dc.LSASize, dc.Rank / dc.LSASize, dc.LSASize}
}

// Inner is the part of n consecutive ranks of the team that this rank is in. n divides the team's size.
func (t Team) Inner(n int32) Team { return Team{n, t.Rank % n, t.Stride} }

// Outer is the ranks of the team with the same place in their parts of n. n divides the team's size.
func (t Team) Outer(n int32) Team { return Team{t.Ranks / n, t.Rank / n, t.Stride * n} }

// WorldRank is the rank in the world of a rank of the team.
func (t Team) WorldRank(dc *DevComm, peer int32) int32 { return dc.Rank + (peer-t.Rank)*t.Stride }

// Has says whether peer is a rank of the team.
func (t Team) Has(peer int32) bool { return peer >= 0 && peer < t.Ranks }

// other is number i, from 0, of the ranks of the team but this one.
func (t Team) other(i int32) int32 {
	if i >= t.Rank {
		return i + 1
	}
	return i
}

// TeamRank is the rank in the team of a rank of the world, or -1 when it is not in it.
func (t Team) TeamRank(dc *DevComm, world int32) int32 {
	away := world - dc.Rank
	if t.Stride == 0 || away%t.Stride != 0 {
		return -1
	}
	if r := t.Rank + away/t.Stride; t.Has(r) {
		return r
	}
	return -1
}

// Contains says whether a rank of the world is in the team.
func (t Team) Contains(dc *DevComm, world int32) bool { return t.TeamRank(dc, world) >= 0 }

// RankIn is the rank in another team of a rank of this one, or -1 when it is not in it.
func (t Team) RankIn(dc *DevComm, other Team, peer int32) int32 {
	if !t.Has(peer) {
		return -1
	}
	return other.TeamRank(dc, t.WorldRank(dc, peer))
}

// RankInDifference is the rank in parent of number index, from 0, of parent's ranks that are not in subset. It is -1 when
// there are not so many, or subset is no part of parent as Inner and Outer make them.
func RankInDifference(parent, subset Team, index int32) int32 {
	if parent.Stride < 1 || subset.Stride < 1 || subset.Stride%parent.Stride != 0 {
		return -1
	}
	step := subset.Stride / parent.Stride
	first := parent.Rank - subset.Rank*step
	last := first + (subset.Ranks-1)*step
	if first < 0 || last < first || last >= parent.Ranks || index < 0 || index >= parent.Ranks-subset.Ranks {
		return -1
	}
	if index < first {
		return index
	}
	index -= first
	if inside := last - first + 1 - subset.Ranks; index >= inside {
		return last + 1 + index - inside
	}
	// Between two ranks of subset there are step-1 others.
	return first + index/(step-1)*step + 1 + index%(step-1)
}

// LSARank is the rank in the LSA team of a rank of the world, or -1 when it is not in it.
func LSARank(dc *DevComm, world int32) int32 {
	r := world - (dc.Rank - dc.LSARank)
	if r < 0 || r >= dc.LSASize {
		return -1
	}
	return r
}

// Source is whom a wait waits for: it ends with PeerLost when a rank of its source is lost. In a team, ranks that were out
// when the device communicator was made (doorbell.Comm.Survivors) do not count.
type Source struct {
	team Team
	from int32 // first rank of the team
	to   int32 // and the one after the last; empty for any
}

// FromPeer is one rank of a team.
func FromPeer(team Team, peer int32) Source { return Source{team, peer, peer + 1} }

// FromTeam is each rank of a team.
func FromTeam(team Team) Source { return Source{team, 0, team.Ranks} }

// FromAny is nobody in particular: only the deadline, Abort and Revoke end the wait.
func FromAny() Source { return Source{} }
