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

	"github.com/doorbell-net/doorbell"
)

//export doorbell_open
func doorbell_open(options *C.char, comm *C.uint64_t) C.int {
	return done(guarded(func() error {
		if comm == nil {
			return missing("comm")
		}
		o, err := parseOptions(C.GoString(options))
		if err != nil {
			return err
		}
		c, err := doorbell.Open(context.Background(), o)
		if err == nil {
			*comm = C.uint64_t(handles.add(&rank{Comm: c}, 0, nil))
		}
		return err
	}))
}

//export doorbell_open_local
func doorbell_open_local(ranks C.int32_t, options *C.char, comms *C.uint64_t) C.int {
	return done(guarded(func() error {
		if comms == nil {
			return missing("comms")
		}
		o, err := parseOptions(C.GoString(options))
		if err != nil {
			return err
		}
		cs, err := doorbell.Local(int(ranks), o)
		if err != nil {
			return err
		}
		out := handlesAt(comms, len(cs))
		for i, c := range cs {
			out[i] = C.uint64_t(handles.add(&rank{Comm: c}, 0, nil))
		}
		return nil
	}))
}

//export doorbell_get_info
func doorbell_get_info(comm C.uint64_t, out *C.struct_doorbell_info) C.int {
	return onComm(comm, func(c *rank) error {
		if out == nil {
			return missing("out")
		}
		*out = C.struct_doorbell_info{rank: C.int32_t(c.Rank()), size: C.int32_t(c.Size()), lsa_rank: C.int32_t(c.LSARank()), lsa_size: C.int32_t(c.LSASize())}
		i := c.Info()
		fill(out.net[:], i.Net)
		fill(out.device[:], i.Device)
		fill(out.progress[:], i.Progress)
		return nil
	})
}

//export doorbell_barrier
func doorbell_barrier(comm C.uint64_t) C.int {
	return onComm(comm, func(c *rank) error { return c.Barrier(context.Background()) })
}

//export doorbell_abort
func doorbell_abort(comm C.uint64_t, why *C.char) C.int {
	return onComm(comm, func(c *rank) error {
		c.Abort(errors.New(C.GoString(why)))
		return nil
	})
}

//export doorbell_revoke
func doorbell_revoke(comm C.uint64_t) C.int {
	return onComm(comm, func(c *rank) error {
		c.Revoke()
		return nil
	})
}

//export doorbell_close
func doorbell_close(comm C.uint64_t) C.int {
	return onComm(comm, func(c *rank) error {
		for c.end() == nil { // kernels have ended, says the contract
		}
		err := c.Close()
		handles.drop(uint64(comm))
		return err
	})
}

//export doorbell_kernels_begin
func doorbell_kernels_begin(comm C.uint64_t) C.int {
	return onComm(comm, func(c *rank) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ended = append(c.ended, c.Foreign())
		return nil
	})
}

//export doorbell_kernels_end
func doorbell_kernels_end(comm C.uint64_t) C.int { return onComm(comm, (*rank).end) }

// end undoes one call of doorbell_kernels_begin.
func (c *rank) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.ended)
	if n == 0 {
		return fmt.Errorf("rank %d: end of kernels without a begin: %w", c.Rank(), errInvalid)
	}
	c.ended[n-1]()
	c.ended = c.ended[:n-1]
	return nil
}

// onComm calls f with a communicator.
func onComm(h C.uint64_t, f func(*rank) error) C.int {
	return done(guarded(func() error {
		c, _, err := find[*rank](uint64(h))
		if err != nil {
			return err
		}
		return f(c)
	}))
}

func missing(name string) error { return fmt.Errorf("%s is NULL: %w", name, errInvalid) }

// fill writes a text that ends by 0, cut to what fits.
func fill(to []C.char, text string) {
	n := min(len(text), len(to)-1)
	for i := range n {
		to[i] = C.char(text[i])
	}
	to[n] = 0
}
