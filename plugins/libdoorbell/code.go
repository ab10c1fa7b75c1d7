// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/internal/bootstrap"
)

// errInvalid is wrapped by errors about an argument.
var errInvalid = errors.New("invalid argument")

// What functions return: enum doorbell_code.
const (
	codeOK           = 0
	codeTimeout      = 1
	codeInvalid      = 2
	codePeerLost     = 3
	codeAborted      = 5
	codeRevoked      = 6
	codeClosed       = 7
	codeNotSupported = 8
	codeCannot       = 9
	codeNotAvailable = 10
	codeOutOfMemory  = 11
	codeFailed       = 12
)

// codeOf is an error's code. What ended a communicator tells more than what a call found of it, so that stands first.
func codeOf(err error) int {
	var lost *bootstrap.PeerLostError
	var left *bootstrap.DepartedError
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case err == nil:
		return codeOK
	case is(errInvalid):
		return codeInvalid
	case is(doorbell.ErrAborted):
		return codeAborted
	case is(doorbell.ErrRevoked):
		return codeRevoked
	case errors.As(err, &lost), errors.As(err, &left):
		return codePeerLost
	case is(doorbell.ErrClosed):
		return codeClosed
	case is(doorbell.ErrNotSupported):
		return codeNotSupported
	case is(doorbell.ErrCannot):
		return codeCannot
	case is(doorbell.ErrNotAvailable):
		return codeNotAvailable
	case is(doorbell.ErrOutOfMemory):
		return codeOutOfMemory
	case is(context.DeadlineExceeded):
		return codeTimeout
	}
	return codeFailed
}

// guarded turns a panic into an error: it must not end somebody else's program.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("broken inside: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}
