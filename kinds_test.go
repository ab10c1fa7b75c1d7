// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"errors"
	"testing"

	"github.com/doorbell-net/doorbell"
)

// TestKindsOfErrors: what is wrong with a call is told apart by errors.Is, on the rank that it is wrong on and on the others.
func TestKindsOfErrors(t *testing.T) {
	is := func(t testing.TB, what string, err, kind error) {
		t.Helper()
		if !errors.Is(err, kind) {
			t.Errorf("%s: %v: it is not %q", what, err, kind)
		}
	}
	for what, o := range map[string]doorbell.Options{"device": {Device: "abacus"}, "network": {Net: "string"}, "backend": {Backend: "abacus"}, "ranks per node": {RanksPerNode: 3}, "traffic class": {TrafficClass: 256}} {
		_, err := doorbell.Local(2, o)
		is(t, what, err, doorbell.ErrInvalid)
	}
	_, err := doorbell.Open(t.Context(), doorbell.Options{Rank: 2, Size: 2})
	is(t, "rank", err, doorbell.ErrInvalid)
	each(t, local(t, 2, doorbell.Options{}), func(r *rank) {
		_, err := r.Alloc(0)
		is(r, "no bytes", err, doorbell.ErrInvalid)
		b := r.alloc(64)
		is(r, "past the end", b.Write(60, make([]byte, 8)), doorbell.ErrInvalid)
		_, err = b.Slice(60, 8)
		is(r, "slice", err, doorbell.ErrInvalid)
		w, err := r.Register(r.ctx, b)
		r.must(err)
		is(r, "free under a window", b.Free(), doorbell.ErrBusy)
		r.drop(w)

		theirs := doorbell.ErrRefused
		if r.Rank() == 1 {
			theirs = doorbell.ErrInvalid
			b = nil
		}
		_, err = r.Register(r.ctx, b)
		is(r, "no buffer on rank 1", err, theirs)
		_, err = r.RegisterSignals(r.ctx, 1-r.Rank())
		is(r, "no signals on rank 1", err, theirs)
		_, err = r.DevComm(r.ctx, doorbell.Needs{Contexts: 1 - 2*r.Rank()})
		is(r, "-1 contexts on rank 1", err, theirs)
		_, err = r.DevComm(r.ctx, doorbell.Needs{Signals: r.Rank()})
		is(r, "signals", err, doorbell.ErrDisagree)
	})
}
