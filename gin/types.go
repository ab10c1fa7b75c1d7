// SPDX-License-Identifier: Apache-2.0

package gin

import "github.com/doorbell-net/doorbell/internal/abi"

// DevComm is a device communicator, passed to kernels by value.
type DevComm = abi.DevComm

// Window is registered memory, passed to kernels by value.
type Window = abi.Window

// SignalWindow is memory of each rank whose words are signals, passed to kernels by value.
type SignalWindow = abi.SignalWindow

// Status is the result of a device call.
type Status = abi.Status

// Results.
const (
	OK          Status = abi.OK
	Timeout     Status = abi.Timeout     // the deadline passed; does not stick
	Invalid     Status = abi.Invalid     // refused at the source, nothing was written; does not stick
	PeerLost    Status = abi.PeerLost    // a rank that the call waits for is lost
	RemoteError Status = abi.RemoteError // an operation to that peer was refused after it was posted
	Aborted     Status = abi.Aborted     // the communicator was aborted
	Revoked     Status = abi.Revoked     // the communicator was revoked
)
