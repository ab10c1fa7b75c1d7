// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
)

// Graph is items of a stream that were recorded, to be queued again as one (Stream.Replay). Arguments are those that were
// recorded; what they point at is read anew.
type Graph interface {
	// Close ends the graph. Replays that are queued are done all the same. A second call does nothing.
	Close() error
}

// Recorder is the stream that a function under Device.Capture gets: what it queues is recorded. What is not of one stream's
// order has no place in a graph: it is refused, and the capture fails.
type Recorder struct {
	Stream // takes launches, copies, fills and stores
	err    error
}

// Err is the first refusal.
func (r *Recorder) Err() error { return r.err }

func (r *Recorder) refuse(what string) error {
	err := fmt.Errorf("%s in a graph: launches, copies, fills and stores are accepted", what)
	if r.err == nil {
		r.err = err
	}
	return err
}

// Record gives an event that fails.
func (r *Recorder) Record() Event { return past{r.refuse("record an event")} }

// WaitEvent is refused.
func (r *Recorder) WaitEvent(Event) { _ = r.refuse("wait for an event") }

// Wait is refused: nothing runs.
func (r *Recorder) Wait(context.Context) error { return r.refuse("wait for the stream") }

// Replay is refused.
func (r *Recorder) Replay(Graph) error { return r.refuse("replay a graph") }

// Close does nothing: the capture ends the stream.
func (r *Recorder) Close() error { return nil }

// past is an event of a stream that runs nothing, with the stream's failure.
type past struct{ err error }

func (p past) Done() bool                 { return true }
func (p past) Wait(context.Context) error { return p.err }
