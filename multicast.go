// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/bootstrap"
	"github.com/doorbell-net/doorbell/internal/device"
)

// Multimem of windows in hardware: where the ranks of an LSA team have a GPU each, and the user asked for it
// (DOORBELL_MULTIMEM), a window gets an address that stands for all their parts. Kernels of packages for sm_90 use it, others
// loop over the peers as everywhere.

// multimem refuses what the device does not have, and says why.
func (c *Comm) multimem(n Needs) error {
	if !n.Multimem || c.dev.Powers().Multimem {
		return nil
	}
	why := fmt.Errorf("device %q has none", c.dev.Name())
	if m, ok := c.dev.(device.Multicaster); ok {
		why = cmp.Or(m.MayMulticast(), c.apart())
	}
	if why == nil {
		return nil
	}
	return fmt.Errorf("multimem asked for: %w; \"soft\" has it, emulated: %w", why, ErrNotSupported)
}

// apart says why ranks of this LSA team cannot be of one multicast object: it takes a GPU of its own for each.
func (c *Comm) apart() error {
	lsa := c.rank - c.lsaRank
	if n := distinct(c.gpus[lsa : lsa+c.lsaSize]); c.lsaSize < 2 || n != c.lsaSize {
		return fmt.Errorf("%d ranks of an LSA team are on %d GPUs: 2 or more are accepted, with a GPU each", c.lsaSize, n)
	}
	return nil
}

// spread makes the address that stands for a window's parts of this LSA team, if there is multicast and each part is device
// memory at the same offset; else it is nil. Collective: one that fails on a rank fails on all. failed is what went wrong
// before on this rank.
func (w *Window) spread(ctx context.Context, offers []offer, failed error) (at gpu.Ptr[byte], err error) {
	c := w.comm
	d, ok := c.dev.(device.Multicaster)
	if !ok || d.MayMulticast() != nil {
		return at, failed
	}
	const what = "register: multicast"
	type part struct {
		Err  string
		Able bool // this rank's part can be one
		Size int  // of the object, from who made it
	}
	mine, lsa := part{Able: c.apart() == nil && w.buf.Bytes() == nil}, c.rank-c.lsaRank
	handle := device.Handle{FD: -1}
	if failed == nil && mine.Able && c.lsaRank == 0 {
		mine.Size = offers[lsa].Bytes
		for _, o := range offers[lsa : lsa+c.lsaSize] {
			mine.Able, mine.Size = mine.Able && o.Off == offers[lsa].Off, min(mine.Size, o.Bytes)
		}
		if mine.Able {
			if w.multicast, failed = d.NewMulticast(c.lsaSize, mine.Size); failed == nil {
				handle = w.multicast.Handle()
			}
		}
	}
	if failed != nil {
		mine.Err = failed.Error()
	}
	blob, jerr := handleBlob(mine, handle)
	if jerr != nil {
		return at, jerr
	}
	blobs, err := c.gather(ctx, what, blob)
	if err != nil {
		return at, cmp.Or(failed, err)
	}
	defer func() {
		for r, b := range blobs {
			closeFDs(r == c.rank, b)
		}
	}()
	able, size := true, 0
	for r, b := range blobs {
		var p part
		if err := json.Unmarshal(b.Bytes, &p); err != nil {
			return at, fmt.Errorf("what rank %d offers: %w", r, err)
		}
		if p.Err != "" { // each rank has seen the same
			return at, cmp.Or(failed, fmt.Errorf("rank %d refused: %s", r, p.Err))
		}
		if able = able && p.Able; r == lsa {
			size = p.Size
		}
	}
	if !able {
		return at, w.unspread()
	}
	if c.lsaRank != 0 {
		w.multicast, err = d.ImportMulticast(device.Handle{FD: firstFD(blobs[lsa]), Bytes: size})
	}
	if err == nil {
		err = w.multicast.Join()
	}
	if err = c.agree(ctx, what+", join", err); err != nil {
		return at, err
	}
	if err = c.agree(ctx, what+", bind", w.multicast.Bind(w.buf.mem)); err != nil {
		return at, err
	}
	return w.multicast.Ptr().Byte(uint64(w.buf.off)), nil
}

func firstFD(b bootstrap.Blob) int {
	if len(b.FDs) == 0 {
		return -1
	}
	return b.FDs[0]
}

// unspread gives this rank's part of the object back.
func (w *Window) unspread() error {
	if w.multicast == nil {
		return nil
	}
	err := w.multicast.Free()
	w.multicast = nil
	return err
}
