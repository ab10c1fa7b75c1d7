// SPDX-License-Identifier: Apache-2.0

//go:build lockstep

package gpu

import "github.com/doorbell-net/doorbell/internal/lockstep"

// Warps of 32 lanes, a goroutine each, that are held to a GPU's rules (internal/lockstep): `go test -tags lockstep`.

const checked = true

// lanes are those of a block's warps.
type lanes struct {
	warps    []lockstep.Warp
	used     int32
	launches uint64
}

func (l *lanes) reset(warps int32) {
	if int(warps) > len(l.warps) {
		l.warps = make([]lockstep.Warp, warps)
	}
	l.used = warps
	l.launches++
	for i := range l.warps[:warps] {
		l.warps[i].Reset(l.launches<<8 | uint64(i))
	}
}

func (l *lanes) end() {
	for i := range l.warps[:l.used] {
		l.warps[i].End(Ended)
	}
}

func (l *lanes) leave(i int32) (warp bool) { return l.warps[i/WarpSize].Leave(i % WarpSize) }

func (t Thread) warp() *lockstep.Warp { return &t.at.block.lanes.warps[t.Warp()] }

func syncWarp(t Thread) { t.warp().Sync(t.Lane()) }

func syncWarps(t Thread, barrier, warps int32) {
	op := "SyncBlock"
	if barrier > 0 {
		op = lockstep.Call("SyncWarps", barrier, warps)
	}
	b := t.at.block
	t.warp().Through(t.Lane(), op, func() {
		if warps > 1 {
			b.barrier[barrier].wait(b, warps)
		}
	})
}

func fromLane[T Word](t Thread, op string, v T, from int32) T {
	if is64[T]() {
		return from64[T](t.warp().Shuffle(t.Lane(), op, to64(v), from))
	}
	return from32[T](uint32(t.warp().Shuffle(t.Lane(), op, uint64(to32(v)), from)))
}

func ballot(t Thread, pred bool) uint32 { return t.warp().Ballot(t.Lane(), pred) }

func match(t Thread, v uint64) uint32 { return t.warp().Match(t.Lane(), v) }

func elect(t Thread) bool { return t.warp().Elect(t.Lane()) }

// checkAligned panics where a GPU would trap: at an address that is no multiple of what it loads at once.
func (p Ptr[T]) checkAligned() {
	if n := p.alignment(); p.Addr()%n != 0 {
		panic(lockstep.Misaligned(p.Addr(), n))
	}
}

// checkOwner panics where an atomic would be none on a GPU: on memory of the host.
func (p Ptr[T]) checkOwner() {
	if err := lockstep.HostAtomic(p.Addr()); err != nil {
		panic(err)
	}
}

func (p Ptr[T]) alignment() uint64 {
	switch any(p).(type) {
	case Ptr[U32x4]:
		return 16
	case Ptr[U32x2]:
		return 8
	}
	return alignOf[T]()
}
