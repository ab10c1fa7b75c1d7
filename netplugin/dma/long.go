// SPDX-License-Identifier: Apache-2.0

package dma

import (
	"slices"

	"github.com/doorbell-net/doorbell/gpu"
)

// written is what is written by what was queued since the last long copy that waited for all before it.
type written struct {
	spans    [gatherMost]span
	n        int
	more     bool // there is more
	roomUsed bool // the gather's room was used for small copies
}

type span struct {
	at    gpu.Ptr[byte]
	bytes uint64
}

func (w *written) note(at gpu.Ptr[byte], bytes uint64) {
	s := span{at, bytes}
	switch {
	case slices.Contains(w.spans[:w.n], s):
	case w.n == len(w.spans):
		w.more = true
	default:
		w.spans[w.n] = s
		w.n++
	}
}

// apart says whether a long copy that reads those bytes may begin while what was queued before is done.
func (w *written) apart(src gpu.Ptr[byte], bytes uint64) bool {
	return !w.more && !w.roomUsed && !slices.ContainsFunc(w.spans[:w.n], func(s span) bool { return overlap(s.at, s.bytes, src, bytes) })
}

// long is Within of many bytes: one engine has them come out while another has them go in.
func (g *Gather) long(dst, src gpu.Ptr[byte], bytes int) error {
	g.Flush()
	ahead := g.before.apart(src, uint64(bytes))
	if !ahead {
		g.before = written{}
	}
	if g.err == nil {
		g.err = g.cp.Through(dst, src, bytes, gpu.PtrOf(g.room), len(g.room)/2, ahead)
	}
	g.before.note(dst, uint64(bytes))
	return g.err
}

// Between copies between this device and another one.
func (g *Gather) Between(dst, src gpu.Ptr[byte], bytes int) error {
	g.Flush()
	if g.err == nil {
		g.err = g.cp.Copy(dst, src, bytes)
	}
	g.before.note(dst, uint64(bytes))
	return g.err
}
