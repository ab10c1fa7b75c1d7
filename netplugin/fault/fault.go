// SPDX-License-Identifier: Apache-2.0

// Package fault wraps a network and makes it misbehave: --net fault+shm. It injects the one fault that it is asked for
// into the first operation that fits, so that a test can see whether it is noticed.
package fault

import (
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

func init() { netplugin.RegisterWrapper(wrapper{}) }

type wrapper struct{}

func (wrapper) Name() string { return "fault" }

func (wrapper) Wrap(p netplugin.Plugin, f netplugin.Faults) netplugin.Plugin { return &plugin{p, f} }

type plugin struct {
	netplugin.Plugin
	faults netplugin.Faults
}

// Name says what is wrapped: "fault+shm".
func (p *plugin) Name() string { return "fault+" + p.Plugin.Name() }

func (p *plugin) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	switch p.faults.Inject {
	case "", netplugin.InjectBitFlip, netplugin.InjectLostPut, netplugin.InjectDoubleSignal:
	default:
		return nil, fmt.Errorf("open %s on rank %d: inject %q, %s, %s and %s are accepted", p.Name(), c.Rank, p.faults.Inject,
			netplugin.InjectBitFlip, netplugin.InjectLostPut, netplugin.InjectDoubleSignal)
	}
	e, err := p.Plugin.Open(c)
	if err != nil || p.faults.Inject == "" || c.Rank != p.faults.Rank {
		return e, err
	}
	bad := &endpoint{Endpoint: e, inject: p.faults.Inject}
	if c, ok := e.(netplugin.Connector); ok {
		return &connecting{bad, c}, nil
	}
	return bad, nil
}

// connecting is the endpoint of a network that has to be connected, and still has to.
type connecting struct {
	*endpoint
	netplugin.Connector
}

type endpoint struct {
	netplugin.Endpoint
	inject string // what is still to happen
	spoilt []byte
}

func (e *endpoint) Post(ops []netplugin.Op) int {
	if e.inject == "" {
		return e.Endpoint.Post(ops)
	}
	for i := range ops {
		if !e.fits(&ops[i]) {
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

func (e *endpoint) fits(op *netplugin.Op) bool {
	if e.inject == netplugin.InjectDoubleSignal {
		return op.Raise && op.SigAdd != 0
	}
	if e.inject == netplugin.InjectLostPut {
		return op.Kind == netplugin.Put && op.Len() > 0
	}
	return op.Kind == netplugin.Put && len(op.Data) > 0 // no bit of what only the device reaches can be turned here
}

func (e *endpoint) postSpoilt(op *netplugin.Op) int {
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
