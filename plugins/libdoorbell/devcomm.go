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

//export doorbell_devcomm_create
func doorbell_devcomm_create(comm C.uint64_t, needs *C.char, devcomm *C.uint64_t, out address, bytes C.uint64_t) C.int {
	return onComm(comm, func(c *rank) error {
		n, err := parseNeeds(C.GoString(needs))
		if err != nil {
			return err
		}
		return structure(comm, devcomm, out, bytes, func() (*doorbell.DevComm, error) { return forCXX(c.DevComm(context.Background(), n)) }, (*doorbell.DevComm).Device)
	})
}

// forCXX refuses a device communicator that kernels of gin.cuh cannot use: they drive no NIC.
func forCXX(dc *doorbell.DevComm, err error) (*doorbell.DevComm, error) {
	if err != nil || dc.Device().NIC == 0 {
		return dc, err
	}
	err = fmt.Errorf("rank %d: device communicator: %w: backend gdaki, since kernels in C++ drive no NIC; proxy is accepted", dc.Device().Rank, doorbell.ErrCannot)
	return nil, errors.Join(err, dc.Close())
}

//export doorbell_devcomm_close
func doorbell_devcomm_close(devcomm C.uint64_t) C.int {
	return onDevComm(devcomm, func(dc *doorbell.DevComm) error {
		err := dc.Close()
		if err == nil {
			handles.drop(uint64(devcomm))
		}
		return err
	})
}

//export doorbell_get_cause
func doorbell_get_cause(devcomm C.uint64_t, out *C.struct_doorbell_cause) C.int {
	return onDevComm(devcomm, func(dc *doorbell.DevComm) error {
		if out == nil {
			return missing("out")
		}
		*out = C.struct_doorbell_cause{}
		var c *doorbell.Cause
		if !errors.As(dc.Cause(), &c) {
			return nil
		}
		*out = C.struct_doorbell_cause{
			status: C.int32_t(c.Status), rank: C.int32_t(c.Rank), peer: C.int32_t(c.Peer), context: C.int32_t(c.Context),
			id: C.uint32_t(c.ID), window: C.uint32_t(c.Window), offset: C.uint64_t(c.Offset),
			wanted: C.uint64_t(c.Wanted), seen: C.uint64_t(c.Seen), since_ns: C.uint64_t(c.Since),
		}
		fill(out.op[:], c.Op)
		fill(out.text[:], c.Error())
		return nil
	})
}

func onDevComm(h C.uint64_t, f func(*doorbell.DevComm) error) C.int {
	return done(guarded(func() error {
		dc, _, err := find[*doorbell.DevComm](uint64(h))
		if err != nil {
			return err
		}
		return f(dc)
	}))
}
