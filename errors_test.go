// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"errors"
	"fmt"
	"testing"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/internal/bootstrap"
)

// TestKindsOfErrors: what ranks that meet, and waits of kernels, end with is of a kind that programs can ask for.
func TestKindsOfErrors(t *testing.T) {
	alone := fmt.Errorf("%w: alone", bootstrap.ErrCutOff)
	all := []error{ErrPeerLost, ErrCutOff, ErrDisagree, ErrRefused, ErrDenied, ErrAborted, ErrRevoked}
	for _, c := range []struct {
		err   error
		kinds []error
	}{
		{kindOfGroup(&bootstrap.PeerLostError{Rank: 1, Cause: bootstrap.ErrSilent}), []error{ErrPeerLost}},
		{kindOfGroup(&bootstrap.PeerLostError{Rank: 1, Cause: alone}), []error{ErrPeerLost, ErrCutOff}},
		{kindOfGroup(fmt.Errorf("barrier: %w", &bootstrap.DepartedError{Rank: 1})), []error{ErrPeerLost}},
		{kindOfGroup(&bootstrap.NameError{}), []error{ErrDisagree}},
		{kindOfGroup(&bootstrap.MismatchError{}), []error{ErrDisagree}},
		{kindOfGroup(&bootstrap.RankTakenError{}), []error{ErrDisagree}},
		{kindOfGroup(&bootstrap.RemoteError{}), []error{ErrRefused}},
		{kindOfGroup(fmt.Errorf("join: %w", bootstrap.ErrToken)), []error{ErrDenied}},
		{&Cause{Status: gin.PeerLost, Detail: errors.New("silent")}, []error{ErrPeerLost}},
		{&Cause{Status: gin.Aborted}, []error{ErrAborted}},
		{&Cause{Status: gin.Revoked}, []error{ErrRevoked}},
		{&Cause{Status: gin.RemoteError}, nil},
	} {
		var got []error
		for _, kind := range all {
			if errors.Is(c.err, kind) {
				got = append(got, kind)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(c.kinds) {
			t.Errorf("%v: is %v, want %v", c.err, got, c.kinds)
		}
	}
}
