// SPDX-License-Identifier: Apache-2.0

package main

/*
#cgo CFLAGS: -I${SRCDIR}/../../include
#define DOORBELL_TYPES_ONLY
#include "doorbell.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"syscall"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
)

// errBroken is wrapped by what guarded makes of a panic.
var errBroken = errors.New("broken inside")

// codeOf is an error's doorbell_code. What ended a communicator tells more than what a call found of it, and that more than
// what it was called with: so the order.
func codeOf(err error) int {
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case err == nil:
		return C.DOORBELL_OK
	case is(errInvalid):
		return C.DOORBELL_INVALID
	case is(errBroken):
		return C.DOORBELL_BROKEN
	case is(doorbell.ErrAborted):
		return C.DOORBELL_ABORTED
	case is(doorbell.ErrRevoked):
		return C.DOORBELL_REVOKED
	case is(doorbell.ErrCutOff):
		return C.DOORBELL_CUT_OFF
	case is(doorbell.ErrPeerLost):
		return C.DOORBELL_PEER_LOST
	case is(doorbell.ErrClosed):
		return C.DOORBELL_CLOSED
	case is(doorbell.ErrDenied):
		return C.DOORBELL_DENIED
	case is(doorbell.ErrDisagree):
		return C.DOORBELL_DISAGREE
	case is(doorbell.ErrRefused):
		return C.DOORBELL_REFUSED
	case is(doorbell.ErrNotSupported):
		return C.DOORBELL_NOT_SUPPORTED
	case is(doorbell.ErrCannot):
		return C.DOORBELL_CANNOT
	case is(doorbell.ErrNotAvailable):
		return C.DOORBELL_NOT_AVAILABLE
	case is(doorbell.ErrOutOfMemory):
		return C.DOORBELL_OUT_OF_MEMORY
	case is(doorbell.ErrBusy):
		return C.DOORBELL_BUSY
	case as[*cuda.Error](err), as[*doorbell.KernelError](err):
		return C.DOORBELL_DEVICE_FAILED
	case is(context.DeadlineExceeded):
		return C.DOORBELL_TIMEOUT
	case as[syscall.Errno](err):
		return C.DOORBELL_SYSTEM
	case is(doorbell.ErrInvalid):
		return C.DOORBELL_INVALID
	}
	return C.DOORBELL_FAILED
}

// as says whether an error is one of type E.
func as[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

// guarded turns a panic into an error: it must not end somebody else's program.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errBroken, p, debug.Stack())
		}
	}()
	return f()
}
