// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"context"
	"errors"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
)

// TestGivesUp: what one block can't send, or waits for in vain, ends all blocks of the rank with that cause, also those that wait
// for what their own rank's blocks were to send; none of them waits for its deadline.
func TestGivesUp(t *testing.T) {
	o := moe.Options{MaxTokens: 16, Hidden: 16, TopK: 2, Experts: 8, Contexts: 4, NoLSA: true}
	w := worldOf(t, 2, doorbell.Options{Net: "tcp", RanksPerNode: 1, Log: quiet()}, o, doorbell.Grid{Blocks: 4, Warps: 1, Cooperative: true})
	defer w.close()
	s, err := solve(problem(spread(t, 1, 2, o), o.Hidden, 1, 0), moe.BF16, ref.ExpertFn)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	err = w.eachStep(s, func(x *step) (err error) {
		if x.got, err = x.b.Dispatch(x.st, x.in); err != nil {
			return err
		}
		if err := errors.Join(x.dispatched(), x.c.Barrier(t.Context())); err != nil {
			return err
		}
		if x.r == 1 { // what rank 0 has for it is refused from now on
			closed <- x.b.Close()
			return nil
		}
		if err := errors.Join(<-closed, x.b.Combine(x.st, x.got, gpu.Cast[byte](x.y))); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), x.c.Timeout()/2)
		defer cancel()
		err = x.b.Wait(ctx, x.st)
		var e *moe.Error
		if !errors.As(err, &e) || e.Status != gin.RemoteError || errors.Is(err, doorbell.ErrAborted) {
			t.Errorf("the combine ended with: %v", err)
		}
		wantError(t, err, "RemoteError: ", "(rank 1,")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
