// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"

	"github.com/doorbell-net/doorbell/internal/device"
)

// result is a CUresult.
type result uint32

const (
	success              result = 0
	errInvalidValue      result = 1
	errOutOfMemory       result = 2
	errNoDevice          result = 100
	errECC               result = 214
	errNVLink            result = 220
	errContained         result = 226
	errNotReady          result = 600
	errIllegalAddress    result = 700
	errLaunchTimeout     result = 702
	errPeerEnabled       result = 704
	errContextDestroyed  result = 709
	errAssert            result = 710
	errStack             result = 714
	errInvalidPC         result = 718
	errLaunchFailed      result = 719
	errCooperativeTooBig result = 720
	errTensorLeak        result = 721
	errUnknown           result = 999
)

// sticky says whether the error ends the context: each later call returns it, for all ranks on that GPU in this process,
// and on an H200 with driver 580 a new context in the same process fails too.
func (r result) sticky() bool {
	switch r {
	case errECC, errNVLink, errContained, errIllegalAddress, errLaunchTimeout, errContextDestroyed, errAssert, errTensorLeak, errUnknown:
		return true
	}
	return r >= errStack && r <= errLaunchFailed // and between: illegal instruction, misaligned address, address space
}

// Error is an error of the CUDA driver.
type Error struct {
	Op     string // the function: cuMemAlloc
	Code   uint32 // the CUresult: 2
	Name   string // its name: CUDA_ERROR_OUT_OF_MEMORY
	Text   string // the driver's sentence for it
	Detail string // what was asked for, and what there is
}

func (e *Error) Error() string {
	s := fmt.Sprintf("cuda: %s: %s (%d): %s", e.Op, e.Name, e.Code, e.Text)
	if e.Detail != "" {
		s += "; " + e.Detail
	}
	return s
}

// Is makes CUDA_ERROR_OUT_OF_MEMORY device.ErrOutOfMemory.
func (e *Error) Is(target error) bool {
	return target == device.ErrOutOfMemory && result(e.Code) == errOutOfMemory
}

// fault is the error of a call.
func (d *driver) fault(f function, r result, format string, args ...any) *Error {
	e := &Error{Op: f.String(), Code: uint32(r), Name: "CUDA_ERROR", Text: "the driver has no text for it", Detail: fmt.Sprintf(format, args...)}
	out := new(outs)
	if d.call(cuGetErrorName, uintptr(r), out.at(0)) == success {
		e.Name = out.string(0)
	}
	if d.call(cuGetErrorString, uintptr(r), out.at(1)) == success {
		e.Text = out.string(1)
	}
	return e
}

// size is a number of bytes for people.
func size(n uint64) string {
	for _, u := range []struct {
		name  string
		bytes uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= 10*u.bytes || n >= u.bytes && n%u.bytes == 0 {
			return fmt.Sprintf("%.4g %s", float64(n)/float64(u.bytes), u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
