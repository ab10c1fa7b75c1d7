// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"errors"
	"fmt"
	"time"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/bootstrap"
	"github.com/doorbell-net/doorbell/internal/device"
)

// Errors that are compared with errors.Is.
var (
	ErrClosed       = device.ErrClosed
	ErrNotSupported = errors.New("not built yet")
	ErrCannot       = errors.New("the network or device cannot")
	ErrOutOfMemory  = device.ErrOutOfMemory
	ErrBusy         = device.ErrBusy                       // in use: try again when what uses it has ended
	ErrInvalid      = errors.New("it is not accepted")     // an argument, an option or a variable of the environment
	ErrDisagree     = errors.New("the ranks do not agree") // they asked for different things
	ErrRefused      = errors.New("another rank refused")   // a collective call, for a reason of its own
	ErrDenied       = bootstrap.ErrToken                   // another rank has another token
	ErrPeerLost     = errors.New("a rank is lost, or has left")
	ErrAborted      = errors.New("the communicator was aborted")
	ErrCutOff       = bootstrap.ErrCutOff // this rank is taken for lost by the others, or reaches too few of them
	ErrRevoked      = errors.New("the communicator was revoked")
)

// kindError is an error of a kind that errors.Is finds, in its own words.
type kindError struct{ err, kind error }

func (e *kindError) Error() string { return e.err.Error() }

// Unwrap is the error and its kind.
func (e *kindError) Unwrap() []error { return []error{e.err, e.kind} }

// ofKind makes an error one of a kind; nil stays nil.
func ofKind(kind, err error) error {
	if err == nil {
		return nil
	}
	return &kindError{err, kind}
}

// kindOfGroup gives an error of ranks that met, or were to meet, its kind.
func kindOfGroup(err error) error {
	switch {
	case isA[*bootstrap.PeerLostError](err), isA[*bootstrap.DepartedError](err):
		return ofKind(ErrPeerLost, err)
	case isA[*bootstrap.NameError](err), isA[*bootstrap.MismatchError](err), isA[*bootstrap.RankTakenError](err):
		return ofKind(ErrDisagree, err)
	case isA[*bootstrap.RemoteError](err):
		return ofKind(ErrRefused, err)
	}
	return err
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// KernelError is a kernel that failed. %+v prints the stack of the thread that did.
type KernelError = device.KernelError

// Cause is the first reason that stuck to a device communicator: why its waits end. Its zero fields do not apply.
type Cause struct {
	Rank    int // whose device communicator it is
	Status  gin.Status
	Op      string
	Peer    int // rank, -1 for several
	Context int
	ID      uint32 // of the signal, counter or barrier
	Window  uint32
	Offset  uint64
	Wanted  uint64
	Seen    uint64
	Since   time.Duration // how long it had waited
	Detail  error         // what the host knows besides
}

func (c *Cause) Error() string {
	s := fmt.Sprintf("rank %d: %v", c.Rank, c.Status)
	if c.Op != "" {
		s += ": " + c.Op
	}
	if c.Peer >= 0 {
		s += fmt.Sprintf(" (rank %d, context %d)", c.Peer, c.Context)
	}
	if c.Wanted != 0 || c.Seen != 0 {
		s += fmt.Sprintf(", id %d: wanted %d, saw %d", c.ID, c.Wanted, c.Seen)
	}
	if c.Since > 0 {
		s += fmt.Sprintf(", after %v", c.Since)
	}
	if c.Detail != nil {
		s += ": " + c.Detail.Error()
	}
	return s
}

// Unwrap is Detail.
func (c *Cause) Unwrap() error { return c.Detail }

// Is says whether the status is one of that kind: ErrPeerLost, ErrAborted or ErrRevoked.
func (c *Cause) Is(kind error) bool {
	switch c.Status {
	case gin.PeerLost:
		return kind == ErrPeerLost
	case gin.Aborted:
		return kind == ErrAborted
	case gin.Revoked:
		return kind == ErrRevoked
	}
	return false
}

// readRecord is a record that is full, or nil.
func readRecord(p gpu.Ptr[abi.Record]) *abi.Record {
	if gpu.Load(gpu.PtrTo(&p.Raw().State), gpu.Acquire, gpu.ScopeSys) != 2 {
		return nil
	}
	r := *p.Raw()
	return &r
}

func causeOf(rank int, r *abi.Record) *Cause {
	return &Cause{
		Rank: rank, Status: gin.Status(r.Status), Op: opText(r.Op), Peer: int(r.Peer), Context: int(r.Ctx), ID: r.ID,
		Window: r.Window, Offset: r.Offset, Wanted: r.Wanted, Seen: r.Seen, Since: time.Duration(r.Since),
	}
}

func opText(op uint32) string {
	switch op {
	case abi.OpPut:
		return "put"
	case abi.OpPutValue, abi.OpPutCell:
		return "small put"
	case abi.OpSignal:
		return "signal"
	case abi.OpGet:
		return "get"
	case abi.OpWaitSignal:
		return "wait for signal"
	case abi.OpWaitSignalAt:
		return "wait for signal at an address"
	case abi.OpWaitCounter:
		return "wait for counter"
	case abi.OpWaitCredit:
		return "wait for queue space"
	case abi.OpFlush:
		return "flush"
	case abi.OpLSABarrier:
		return "LSA barrier"
	case abi.OpLLA2A:
		return "LLA2A receive"
	case abi.OpGINBarrier:
		return "barrier"
	case abi.OpWQE:
		return "work-queue entry"
	}
	return ""
}
