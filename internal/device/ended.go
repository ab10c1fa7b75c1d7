// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
)

// ErrStreamClosed is what a stream that is closed refuses everything with.
var ErrStreamClosed = fmt.Errorf("launch: the stream is %w", ErrClosed)

// Ended is a stream that is closed and was never anything else: it holds nothing of a device.
type Ended struct{}

// Launch is refused.
func (Ended) Launch(c gpu.Call, _ Grid) error {
	c.Release()
	return ErrStreamClosed
}

// Copy is refused.
func (Ended) Copy(_, _ gpu.Ptr[byte], _ int) error { return ErrStreamClosed }

// Copies is refused.
func (Ended) Copies(_, _ []gpu.Ptr[byte], _ []uint64) error { return ErrStreamClosed }

// Through is refused.
func (Ended) Through(_, _ gpu.Ptr[byte], _ int, _ gpu.Ptr[byte], _ int, _ bool) error {
	return ErrStreamClosed
}

// Fill is refused.
func (Ended) Fill(gpu.Ptr[byte], byte, int) error { return ErrStreamClosed }

// Store is refused.
func (Ended) Store(gpu.Ptr[uint64], uint64) error { return ErrStreamClosed }

// StoreBoth is refused.
func (Ended) StoreBoth(gpu.Ptr[uint64], uint64, gpu.Ptr[uint64], uint64) error {
	return ErrStreamClosed
}

// Replay is refused.
func (Ended) Replay(Graph) error { return ErrStreamClosed }

// Record gives an event that has come: nothing was queued.
func (Ended) Record() Event { return past{} }

// WaitEvent does nothing: no launch comes later.
func (Ended) WaitEvent(Event) {}

// Wait has nothing to wait for.
func (Ended) Wait(context.Context) error { return nil }

// Close does nothing.
func (Ended) Close() error { return nil }
