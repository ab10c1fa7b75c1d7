// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/doorbell-net/doorbell/internal/launchenv"
)

// Each runs fn on each rank of this process: on the one that a launcher started it as, or, where none did, on n ranks
// that it makes in this process, at the same time. A rank that is done waits for the others before it closes its
// communicator; one that fails aborts the others of this process at once. It returns all failures.
func Each(ctx context.Context, n int, fn func(context.Context, *Comm) error, opts ...Options) error {
	me, err := launchenv.RankOf(nil)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	var cs []*Comm
	if me != nil {
		var o Options
		if len(opts) > 0 {
			o = opts[0]
		}
		var c *Comm
		c, err = Open(ctx, o)
		cs = append(cs, c)
	} else {
		cs, err = Local(n, opts...)
	}
	if err != nil {
		return err
	}
	errs := make([]error, len(cs))
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() {
			err := fn(ctx, c)
			if err == nil {
				err = c.Barrier(ctx) // a rank that left would be lost to those that still wait for another
			} else {
				for _, other := range cs {
					other.Abort(fmt.Errorf("rank %d failed", c.rank))
				}
			}
			errs[i] = errors.Join(err, c.Close())
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Main is Each for a program: it prints a failure and ends the process with status 1.
func Main(n int, fn func(context.Context, *Comm) error) {
	if err := Each(context.Background(), n, fn); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
