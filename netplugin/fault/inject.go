// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

// maxSkip bounds how many operations that fit go well before one goes wrong.
const maxSkip = 8

// spoiler makes one operation go wrong.
type spoiler struct {
	netplugin.Endpoint
	inject string // what is still to happen
	skip   int    // after so many that fit
	spoilt []byte
}

func (e *spoiler) Post(ops []netplugin.Op) int {
	if e.inject == "" {
		return e.Endpoint.Post(ops)
	}
	for i := range ops {
		if !e.fits(&ops[i]) {
			continue
		}
		if e.skip > 0 {
			e.skip--
			continue
		}
		// Those before it go first; it goes alone, so that a network that takes fewer does not lose the fault.
		if i > 0 {
			if n := e.Endpoint.Post(ops[:i]); n < i || ops[i-1].State == netplugin.Failed {
				return n
			}
		}
		return i + e.postSpoilt(&ops[i])
	}
	return e.Endpoint.Post(ops)
}

func (e *spoiler) fits(op *netplugin.Op) bool {
	if e.inject == netplugin.InjectDoubleSignal {
		return op.Raise && op.SigAdd != 0
	}
	if e.inject == netplugin.InjectLostPut {
		return op.Kind == netplugin.Put && op.Len() > 0
	}
	return op.Kind == netplugin.Put && len(op.Data) > 0 // no bit of what only the device reaches can be turned here
}

func (e *spoiler) postSpoilt(op *netplugin.Op) int {
	bad := [1]netplugin.Op{*op}
	// Bytes that are spoilt lie in no window: the device's address of the good ones goes.
	switch e.inject {
	case netplugin.InjectBitFlip:
		e.spoilt = append(e.spoilt[:0], op.Data...)
		e.spoilt[len(e.spoilt)/2] ^= 1
		bad[0].Data, bad[0].Src, bad[0].Bytes = e.spoilt, gpu.Ptr[byte]{}, 0
	case netplugin.InjectLostPut:
		bad[0].Data, bad[0].Src, bad[0].Bytes = nil, gpu.Ptr[byte]{}, 0
	case netplugin.InjectDoubleSignal:
		bad[0].SigAdd *= 2
	}
	n := e.Endpoint.Post(bad[:])
	if n == 1 {
		op.State, op.Err = bad[0].State, bad[0].Err
		if op.State != netplugin.Failed { // one that is refused does no harm: the fault is still to come
			e.inject = ""
		}
	}
	return n
}
