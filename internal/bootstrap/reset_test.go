// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// breakWays are what a box between two hosts does to the control socket of two ranks that live on.
var breakWays = map[string]func(t *testing.T, a, b *net.TCPConn){
	"reset": func(t *testing.T, a, _ *net.TCPConn) {
		if err := errors.Join(a.SetLinger(0), a.Close()); err != nil {
			t.Error(err)
		}
	},
	"end at both": func(t *testing.T, a, b *net.TCPConn) {
		for _, c := range []*net.TCPConn{a, b} {
			raw, err := c.SyscallConn()
			if err == nil {
				err = raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
			}
			if err != nil && !errors.Is(err, net.ErrClosed) { // its rank has seen the first one's end already
				t.Error(err)
			}
		}
	},
}

// Ranks whose control socket broke while both live agree on who goes on: never both of two, never two sets of more. The
// one that does not is told at once.
func TestBrokenControlSocket(t *testing.T) {
	for how, broken := range breakWays {
		for _, c := range []struct{ size, a, b int }{{2, 0, 1}, {3, 0, 1}, {3, 1, 2}} {
			t.Run(fmt.Sprintf("%s, %d and %d of %d", how, c.a, c.b, c.size), func(t *testing.T) {
				checkLeaks(t)
				gs := makers["tcp"](t, c.size)
				defer closeGroups(gs)
				// What each rank is told: whom it lost, and whether it stops.
				type told struct {
					lost []int
					stop bool
				}
				ends := make([]chan told, c.size)
				for r, g := range gs {
					ends[r] = make(chan told, 1)
					var mine told
					g.OnLost(func(rank int, cause error) {
						mine.lost = append(mine.lost, rank)
						if mine.stop = errors.Is(cause, ErrCutOff); !mine.stop || len(mine.lost) == c.size-1 {
							slices.Sort(mine.lost)
							ends[r] <- mine
						}
					})
				}
				conn := func(a, b int) *net.TCPConn { return gs[a].(*group).tr.(*mesh).link(b).conn.(*net.TCPConn) }
				start := time.Now()
				broken(t, conn(c.a, c.b), conn(c.b, c.a))
				goes := -1
				all := make([]told, c.size)
				for r := range gs {
					all[r] = <-ends[r]
					if all[r].stop {
						if goes >= 0 || r != c.a && r != c.b || c.size == 2 && r != 1 {
							t.Errorf("rank %d stops, and %d", r, goes)
						}
						goes = r
					}
				}
				for r, g := range gs {
					want, epoch := []int{goes}, uint32(1)
					if r == goes {
						want, epoch = slices.Delete(seq(c.size), r, r+1), 0
					}
					if !slices.Equal(all[r].lost, want) || g.Epoch() != epoch {
						t.Errorf("rank %d lost %v in epoch %d, want %v in %d", r, all[r].lost, g.Epoch(), want, epoch)
					}
				}
				if took := time.Since(start); took > defaultSuspect {
					t.Errorf("took %v: that is by silence", took)
				}
			})
		}
	}
}
