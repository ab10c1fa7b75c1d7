// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"

	"github.com/doorbell-net/doorbell"
)

// entry is what a handle stands for.
type entry struct {
	what  any
	owner uint64          // handle of the communicator
	pins  *runtime.Pinner // of what C was given the addresses of
}

// rank is a communicator, and how to say that its caller's kernels have ended.
type rank struct {
	*doorbell.Comm
	mu    sync.Mutex
	ended []func()
}

// table has all that C holds. It is safe for concurrent use.
type table struct {
	mu   sync.Mutex
	last uint64
	live map[uint64]entry
}

var handles = table{live: map[uint64]entry{}}

// add gives a handle to what was made by the communicator of that handle, 0 for a communicator itself.
func (t *table) add(what any, owner uint64, pins *runtime.Pinner) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.live[t.last] = entry{what, owner, pins}
	return t.last
}

// drop forgets a handle, and all that its communicator made if it is one.
func (t *table) drop(h uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, e := range t.live {
		if k == h || e.owner == h {
			if e.pins != nil {
				e.pins.Unpin()
			}
			delete(t.live, k)
		}
	}
}

// find is what a handle stands for, of the type that the caller takes.
func find[T any](h uint64) (what T, owner uint64, err error) {
	handles.mu.Lock()
	e, ok := handles.live[h]
	handles.mu.Unlock()
	if !ok {
		return what, 0, fmt.Errorf("handle %d: nothing, want %s: %w", h, kind(what), errInvalid)
	}
	if what, ok = e.what.(T); !ok {
		return what, 0, fmt.Errorf("handle %d: %s, want %s: %w", h, kind(e.what), kind(what), errInvalid)
	}
	return what, e.owner, nil
}

// kind is what a caller calls it.
func kind(what any) string {
	switch what.(type) {
	case *rank:
		return "a communicator"
	case *doorbell.Buffer:
		return "a buffer"
	case *doorbell.DevComm:
		return "a device communicator"
	}
	return "a window" // of bytes or of signals
}

// pin pins what the fields that are addresses of the device point at, if it is Go's.
func pin(pins *runtime.Pinner, structure reflect.Value) {
	for _, f := range structure.Fields() {
		if raw := f.MethodByName("Raw"); raw.IsValid() {
			if p := raw.Call(nil)[0]; !p.IsNil() {
				pins.Pin(p.Interface())
			}
		}
	}
}
