// SPDX-License-Identifier: Apache-2.0

package main

/*
#cgo CFLAGS: -I${SRCDIR}/../../include
#define DOORBELL_TYPES_ONLY
#include "doorbell.h"
*/
import "C"

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"runtime"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
)

//export doorbell_alloc
func doorbell_alloc(comm C.uint64_t, bytes C.uint64_t, buffer *C.uint64_t) C.int {
	return alloc(comm, bytes, buffer, (*doorbell.Comm).Alloc)
}

//export doorbell_alloc_host
func doorbell_alloc_host(comm C.uint64_t, bytes C.uint64_t, buffer *C.uint64_t) C.int {
	return alloc(comm, bytes, buffer, (*doorbell.Comm).AllocHost)
}

func alloc(comm, bytes C.uint64_t, buffer *C.uint64_t, take func(*doorbell.Comm, int) (*doorbell.Buffer, error)) C.int {
	return onComm(comm, func(c *rank) error {
		n, err := size(bytes)
		if err = cmp.Or(err, given("buffer", buffer)); err != nil {
			return err
		}
		b, err := take(c.Comm, n)
		if err != nil {
			return err
		}
		pins := new(runtime.Pinner)
		pins.Pin(b.Ptr().Raw())
		*buffer = C.uint64_t(handles.add(b, uint64(comm), pins))
		return nil
	})
}

//export doorbell_free
func doorbell_free(buffer C.uint64_t) C.int {
	return onBuffer(buffer, func(b *doorbell.Buffer) error {
		err := b.Free()
		if err == nil {
			handles.drop(uint64(buffer))
		}
		return err
	})
}

//export doorbell_write
func doorbell_write(buffer, offset C.uint64_t, from address, bytes C.uint64_t) C.int {
	return span(buffer, offset, from, bytes, (*doorbell.Buffer).Write)
}

//export doorbell_read
func doorbell_read(buffer, offset C.uint64_t, to address, bytes C.uint64_t) C.int {
	return span(buffer, offset, to, bytes, (*doorbell.Buffer).Read)
}

func span(buffer, offset C.uint64_t, at address, bytes C.uint64_t, move func(*doorbell.Buffer, int, []byte) error) C.int {
	return onBuffer(buffer, func(b *doorbell.Buffer) error {
		off, err1 := size(offset)
		n, err2 := size(bytes)
		if err := cmp.Or(err1, err2); err != nil || n == 0 {
			return err
		}
		if at == nil {
			return missing("memory")
		}
		if off > b.Len() || n > b.Len()-off {
			return fmt.Errorf("%d bytes at %d of a buffer of %d: %w", n, off, b.Len(), errInvalid)
		}
		return move(b, off, bytesOf(at, n))
	})
}

//export doorbell_address
func doorbell_address(buffer C.uint64_t, device, host *C.uintptr_t) C.int {
	return onBuffer(buffer, func(b *doorbell.Buffer) error {
		if device == nil || host == nil {
			return missing("device or host")
		}
		at, view := addresses(b.Ptr(), b.Bytes())
		*device, *host = C.uintptr_t(at), C.uintptr_t(view)
		return nil
	})
}

//export doorbell_register
func doorbell_register(comm, buffer C.uint64_t, window *C.uint64_t, out address, bytes C.uint64_t) C.int {
	return onComm(comm, func(c *rank) error {
		b, _, err := find[*doorbell.Buffer](uint64(buffer))
		if err != nil {
			return err
		}
		return structure(comm, window, out, bytes, func() (*doorbell.Window, error) { return c.Register(context.Background(), b) }, (*doorbell.Window).Device)
	})
}

//export doorbell_register_signals
func doorbell_register_signals(comm, n C.uint64_t, window *C.uint64_t, out address, bytes C.uint64_t) C.int {
	return onComm(comm, func(c *rank) error {
		signals, err := size(n)
		if err != nil {
			return err
		}
		return structure(comm, window, out, bytes, func() (*doorbell.SignalWindow, error) {
			return c.RegisterSignals(context.Background(), signals)
		}, (*doorbell.SignalWindow).Device)
	})
}

//export doorbell_deregister
func doorbell_deregister(window C.uint64_t) C.int {
	return done(guarded(func() error {
		w, _, err := find[interface{ Close() error }](uint64(window))
		if err != nil {
			return err
		}
		switch w.(type) {
		case *doorbell.Window, *doorbell.SignalWindow:
		default:
			return fmt.Errorf("handle %d: %s, want a window: %w", uint64(window), kind(w), errInvalid)
		}
		err = w.Close()
		handles.drop(uint64(window))
		return err
	}))
}

// structure makes an object by a collective call, and stores for C its handle and what kernels get of it.
func structure[O, D any](comm C.uint64_t, handle *C.uint64_t, out address, bytes C.uint64_t, create func() (O, error), device func(O) D) error {
	if err := given("handle", handle); err != nil {
		return err
	}
	if out == nil {
		return missing("out")
	}
	if want := gpu.SizeOf[D](); uint64(bytes) != want {
		return fmt.Errorf("out has %d bytes, %d are accepted: the header is of another version: %w", uint64(bytes), want, errInvalid)
	}
	o, err := create()
	if err != nil {
		return err
	}
	d, pins := device(o), new(runtime.Pinner)
	pin(pins, reflect.ValueOf(d))
	store(out, &d)
	*handle = C.uint64_t(handles.add(o, uint64(comm), pins))
	return nil
}

func onBuffer(h C.uint64_t, f func(*doorbell.Buffer) error) C.int {
	return done(guarded(func() error {
		b, _, err := find[*doorbell.Buffer](uint64(h))
		if err != nil {
			return err
		}
		return f(b)
	}))
}

// size is a number of C's as Go takes it.
func size(n C.uint64_t) (int, error) {
	if uint64(n) > math.MaxInt64 {
		return 0, fmt.Errorf("%d bytes: less than 2^63 is accepted: %w", uint64(n), errInvalid)
	}
	return int(n), nil
}

func given(name string, p *C.uint64_t) error {
	if p == nil {
		return missing(name)
	}
	return nil
}
