// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

var grid = doorbell.Grid{Blocks: 3, Warps: 2, Cooperative: true}

// each runs f on a layer of each of n ranks.
func each(t *testing.T, n int, o Options, d doorbell.Options, f func(context.Context, *doorbell.Comm, *Layer) error) error {
	t.Helper()
	d.Timeout = 20 * time.Second
	return doorbell.Each(t.Context(), n, func(ctx context.Context, c *doorbell.Comm) error {
		l, err := New(ctx, c, o)
		if err == nil {
			err = f(ctx, c, l)
		}
		if err == nil {
			err = c.Barrier(ctx)
		}
		if err == nil {
			err = l.Close()
		}
		return err
	}, d)
}

// TestFormsLeaveWhatLoopsGive: any sequence of works and forms, for odd shapes too, leaves the bits of the reference in each
// round, and has sent each tile once.
func TestFormsLeaveWhatLoopsGive(t *testing.T) {
	random := testenv.Random(t)
	for _, x := range []struct {
		name  string
		ranks int
		o     Options
		d     doorbell.Options
	}{
		{"alone", 1, Options{Tiles: 2, Width: 8, Depth: 3}, doorbell.Options{}},
		{"fewer tiles than warps", 2, Options{Tiles: 1, Width: 5, Depth: 1}, doorbell.Options{}},
		{"odd", 3, Options{Tiles: 7, Width: 33, Depth: 65}, doorbell.Options{}},
		{"stores", 4, Options{Tiles: 7, Width: 12, Depth: 9, Stores: true}, doorbell.Options{}},
		{"virtual nodes", 4, Options{Tiles: 9, Width: 4, Depth: 36, Stores: true}, doorbell.Options{RanksPerNode: 2}},
	} {
		t.Run(x.name, func(t *testing.T) {
			x.o.Grid, x.o.Seed = grid, random.Uint64()
			const rounds = 18
			order := make([]int, rounds) // the same on all ranks
			for i := range order {
				order[i] = random.IntN(len(Works) * len(Forms))
			}
			err := each(t, x.ranks, x.o, x.d, func(ctx context.Context, _ *doorbell.Comm, l *Layer) error {
				for i, k := range order {
					w, f := Works[k/len(Forms)], Forms[k%len(Forms)]
					if err := errors.Join(l.Fill(uint64(i)), l.Run(ctx, w, f)); err != nil {
						return err
					}
					if n, err := l.Check(w); err != nil || n < int64(4*x.o.Tiles*x.o.Width*x.ranks) {
						return fmt.Errorf("round %d, %v: %d bytes compared, %w", i, f, n, err)
					}
				}
				if l.Sent() != uint64(rounds*x.o.Tiles) {
					return fmt.Errorf("%d tiles sent in %d rounds", l.Sent(), rounds)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCheckNotices: a rank that computed from other values than it should is found by each of the others.
func TestCheckNotices(t *testing.T) {
	for _, w := range Works {
		found := make([]error, 3)
		err := each(t, 3, Options{Tiles: 3, Width: 16, Depth: 4, Grid: grid}, doorbell.Options{}, func(ctx context.Context, c *doorbell.Comm, l *Layer) error {
			err := l.Fill(5)
			if c.Rank() == 1 {
				err = l.Fill(6)
			}
			if err == nil {
				err = l.Run(ctx, w, Fused)
			}
			l.iter = 5
			_, found[c.Rank()] = l.Check(w)
			return err
		})
		for rank, f := range found {
			if err != nil || !errors.Is(f, ErrWrong) || !strings.Contains(f.Error(), "from rank 1: 48 of 48 values wrong") {
				t.Errorf("%v: rank %d found %v, %v", w, rank, f, err)
			}
		}
	}
}

// TestReferenceIsTheLayer: the reference is RMSNorm and a product, up to rounding, by their formulas in float64.
func TestReferenceIsTheLayer(t *testing.T) {
	const tiles, width, depth, rank = 3, 20, 37, 1
	l := &Layer{o: Options{Tiles: tiles, Width: width, Depth: depth, Seed: 9}, iter: 4}
	got := make([]float32, tiles*width)
	for _, w := range Works {
		l.part(got, w, rank)
		for i, g := range got {
			want := 0.0
			if w == RMSNormAllGather {
				for j := range width {
					want += math.Pow(float64(value(9, rank, 4, i/width*width+j)), 2)
				}
				want = float64(value(9, rank, 4, i)) / math.Sqrt(want/width) * float64(value(9, rank, weight, i%width))
			} else {
				for j := range depth {
					want += float64(value(9, rank, weight, i*depth+j)) * float64(value(9, rank, 4, j))
				}
			}
			if math.Abs(float64(g)-want) > 1e-4 {
				t.Errorf("%v: element %d is %v, must be about %v", w, i, g, want)
			}
		}
	}
}

func TestOptionsRefused(t *testing.T) {
	for says, o := range map[string]Options{
		"0 tiles":         {Tiles: 0, Width: 1, Depth: 1, Grid: grid},
		"of -1 elements":  {Tiles: 1, Width: -1, Depth: 1, Grid: grid},
		"3 tiles":         {Tiles: 3, Width: math.MaxInt32 / 2, Depth: 1, Grid: grid},
		"depth 0":         {Tiles: 1, Width: 1, Depth: 0, Grid: grid},
		"1 to 6":          {Tiles: 2, Width: 3, Depth: 7, Grid: grid},
		"not cooperative": {Tiles: 1, Width: 1, Depth: 1, Grid: doorbell.Grid{Blocks: 1, Warps: 1}},
	} {
		err := each(t, 1, o, doorbell.Options{}, func(context.Context, *doorbell.Comm, *Layer) error { return nil })
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v (must say %q)", o, err, says)
		}
	}
}

// TestFailureEndsRun: a rank that ends in place of its round ends those of the others, and their errors say why.
func TestFailureEndsRun(t *testing.T) {
	for _, f := range Forms {
		var got error
		runs, gone := make(chan struct{}), errors.New("gone")
		err := each(t, 2, Options{Tiles: 1, Width: 4, Depth: 1, Grid: grid}, doorbell.Options{}, func(ctx context.Context, c *doorbell.Comm, l *Layer) error {
			if c.Rank() == 1 {
				<-runs
				return gone
			}
			close(runs)
			got = l.Run(ctx, RMSNormAllGather, f)
			return got
		})
		if want := fmt.Sprintf("rank 0: rmsnorm-allgather, %v, round 1 ended with ", f); got == nil || !errors.Is(err, gone) || !strings.Contains(got.Error(), want) {
			t.Errorf("%v: %v (must say %q), %v", f, got, want, err)
		}
	}
}
