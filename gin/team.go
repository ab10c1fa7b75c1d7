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

// LSARank is the rank in the LSA team of a rank of the world, or -1 when it is not in it.
func LSARank(dc *DevComm, world int32) int32 {
	r := world - (dc.Rank - dc.LSARank)
	if r < 0 || r >= dc.LSASize {
		return -1
	}
	return r
}

// Source is whom a wait waits for: it ends with PeerLost when a rank of its source is lost.
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
