// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/bootstrap"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/proxy"
	"github.com/doorbell-net/doorbell/internal/sys"
	"github.com/doorbell-net/doorbell/netplugin"
)

// Window is memory of each rank that peers put into.
type Window struct {
	comm    *Comm
	buf     *Buffer
	dev     gin.Window
	maps    []device.Memory // by rank, nil where not mapped
	regions []netplugin.Region
	export  []byte // of the network
	// multicast is this rank's part of what stands for the parts of all LSA peers, nil for none.
	multicast device.Multicast
	once      sync.Once
	err       error
}

// offer is what a rank says of the memory that it registers.
type offer struct {
	Err    string
	Bytes  int // of the whole memory behind the handle
	Off    int
	Size   int
	Export []byte // of the network
	Device bool   // the network does not reach it
}

// Register makes a buffer a window. Collective: each rank brings a buffer of its own, of any size from 1 byte. If it
// fails on one rank it fails on all, with that rank's reason.
func (c *Comm) Register(ctx context.Context, b *Buffer) (*Window, error) {
	err := c.begin("register")
	if err != nil {
		return nil, err
	}
	defer c.calls.Done()
	switch {
	case b == nil:
		err = ofKind(ErrInvalid, errors.New("no buffer"))
	case b.comm != c:
		err = ofKind(ErrInvalid, fmt.Errorf("the buffer is of rank %d's communicator", b.comm.rank))
	default:
		err = b.use()
	}
	used := err == nil
	w := &Window{comm: c, buf: b}
	if used {
		err = w.register(ctx)
	} else {
		err = c.refuse(ctx, "register", err) // the others are not to wait for this rank
	}
	if err != nil {
		w.unmap()
		err = errors.Join(err, w.unspread())
		if used {
			b.unuse()
		}
		return nil, fmt.Errorf("rank %d: register: %w", c.rank, err)
	}
	c.mu.Lock()
	c.windows[w] = struct{}{}
	c.mu.Unlock()
	return w, nil
}

func (w *Window) register(ctx context.Context) error {
	c := w.comm
	var err error
	if mem := w.buf.Bytes(); mem != nil {
		w.export, err = c.export(ctx, mem, false)
	} else if x, ok := c.memory.(netplugin.DeviceExporter); ok {
		w.export, err = c.exportDevice(ctx, x, w.buf)
	} // else the network maps it, or does not reach it
	if err != nil {
		return c.refuse(ctx, "register", err)
	}
	blob, err := handleBlob(offer{Bytes: w.buf.root.n, Off: w.buf.off, Size: w.buf.n, Export: w.export, Device: w.buf.Bytes() == nil && !c.plugin.Powers().DeviceMemory}, w.buf.mem.Handle())
	if err != nil {
		return c.refuse(ctx, "register", err)
	}
	offers := make([]offer, c.size)
	err = c.exchange(ctx, "register", blob, func(r int, b bootstrap.Blob) error { return json.Unmarshal(b.Bytes, &offers[r]) },
		func(blobs []bootstrap.Blob) error {
			w.maps, w.regions, err = c.importAll(ctx, blobs, offers, true)
			all, err := w.spread(ctx, offers, err)
			if err != nil {
				return err
			}
			return w.publish(ctx, offers, all)
		})
	if err != nil && !w.dev.Info.IsNil() {
		err = errors.Join(err, c.withdraw(ctx, w.dev.ID))
	}
	return err
}

// publish makes the window known to the device and to the proxy. all stands for the parts of all LSA peers, or is nil.
func (w *Window) publish(ctx context.Context, offers []offer, all gpu.Ptr[byte]) error {
	c := w.comm
	id, gen, info, err := c.enter(offers, w.regions, all, w.buf.Ptr(), func(r int) gpu.Ptr[byte] { return w.maps[r].Ptr().Byte(uint64(offers[r].Off)) })
	if err != nil {
		return err
	}
	w.dev = gin.Window{Info: info, Base: w.buf.Ptr(), Size: uint64(w.buf.n), ID: id, Gen: gen, LSA0: int32(c.rank - c.lsaRank)}
	if c.dev.Powers().Lanes > 1 && w.buf.Bytes() != nil {
		w.dev.Far = 1
	}
	if err := c.owner.AddWindow(ctx, &proxy.Window{ID: id, Gen: gen, Bytes: w.buf.Bytes(), Dev: c.devAddress(w.buf), Size: w.buf.n, Peers: w.regions}); err != nil {
		return err // withdraw gives the id back
	}
	return c.infos.setGen(id, gen)
}

// enter fills the entry of a new window, which setGen makes valid: sizes are as offered, keys are of the ranks' memory where
// kernels drive a NIC, and LSA peers store at mine and at theirs; of one that is out the size is 0, so nothing is stored there.
// all stands for the parts of all of them, or is nil. infos.give gives the id back.
func (c *Comm) enter(offers []offer, keys []netplugin.Region, all, mine gpu.Ptr[byte], theirs func(rank int) gpu.Ptr[byte]) (id, gen uint32, info gpu.Ptr[abi.WindowInfo], err error) {
	c.mu.Lock()
	c.gen = c.gen%abi.GenMask + 1
	gen = c.gen
	c.mu.Unlock()
	if id, info, err = c.infos.take(); err != nil {
		return 0, 0, info, err
	}
	lsa0, bases := c.rank-c.lsaRank, make([]gpu.Ptr[byte], c.lsaSize)
	for i := range bases {
		if bases[i] = mine; i != c.lsaRank && !c.isOut(lsa0+i) {
			bases[i] = theirs(lsa0 + i)
		}
	}
	if err = c.infos.fill(id, offers, keys, all, lsa0, bases); err != nil {
		c.infos.give(id)
	}
	return id, gen, info, err
}

// export tells the network of memory that peers will name.
func (c *Comm) export(ctx context.Context, mem []byte, signals bool) (key []byte, err error) {
	werr := c.owner.With(ctx, func() { key, err = c.memory.Export(mem, signals) })
	return key, cmp.Or(werr, err)
}

// exportDevice is export of a buffer that only the device reaches.
func (c *Comm) exportDevice(ctx context.Context, x netplugin.DeviceExporter, b *Buffer) (key []byte, err error) {
	werr := c.owner.With(ctx, func() { key, err = x.ExportDevice(b.Ptr(), b.n) })
	return key, cmp.Or(werr, err)
}

// devAddress is the device's address of a buffer, nil where it is the host's too.
func (c *Comm) devAddress(b *Buffer) gpu.Ptr[byte] {
	if c.dev.Powers().HostView {
		return gpu.Ptr[byte]{}
	}
	return b.Ptr()
}

// importAll maps each rank's memory, the first of its blob, where it can be, and makes it known to the network. The own
// region is imported like the others': a rank may put to itself. stores says that kernels of LSA peers use it too.
func (c *Comm) importAll(ctx context.Context, blobs []bootstrap.Blob, offers []offer, stores bool) (maps []device.Memory, regions []netplugin.Region, err error) {
	maps, regions = make([]device.Memory, c.size), make([]netplugin.Region, c.size)
	lsa := c.rank - c.lsaRank
	for r, b := range blobs {
		if c.isOut(r) {
			continue
		}
		o := &offers[r]
		if o.Size < 1 || o.Off < 0 || o.Off > o.Bytes-o.Size {
			return maps, regions, fmt.Errorf("rank %d offers %d bytes at %d of %d", r, o.Size, o.Off, o.Bytes)
		}
		key := netplugin.Key{Bytes: o.Export, Size: o.Size}
		inLSA := stores && r >= lsa && r < lsa+c.lsaSize
		if c.plugin.Powers().Mapped || inLSA {
			m, err := c.importMemory(b, 0, o.Bytes)
			if err != nil {
				return maps, regions, fmt.Errorf("map memory of rank %d: %w", r, err)
			}
			maps[r] = m
			if all := m.Bytes(); len(all) >= o.Bytes {
				key.Map = all[o.Off : o.Off+o.Size : o.Off+o.Size]
			}
			if !c.dev.Powers().HostView {
				key.Dev = m.Ptr().Byte(uint64(o.Off))
				key.Elsewhere = key.Map == nil && c.gpus[r] != c.gpus[c.rank]
			}
		}
		if o.Device {
			continue
		}
		var ierr error
		if err := c.owner.With(ctx, func() { regions[r], ierr = c.memory.Import(r, key) }); err != nil || ierr != nil {
			return maps, regions, cmp.Or(err, ierr)
		}
	}
	return maps, regions, nil
}

// importPeers maps memory number i of each other LSA peer's blob; bytes says how much a rank has.
func (c *Comm) importPeers(blobs []bootstrap.Blob, i int, bytes func(rank int) int) (maps []device.Memory, err error) {
	maps = make([]device.Memory, c.size)
	for r := c.rank - c.lsaRank; r < c.rank-c.lsaRank+c.lsaSize; r++ {
		if r == c.rank || c.isOut(r) {
			continue
		}
		if maps[r], err = c.importMemory(blobs[r], i, bytes(r)); err != nil {
			return maps, fmt.Errorf("map signals of rank %d: %w", r, err)
		}
	}
	return maps, nil
}

// refuse is exchange for a rank that has nothing but a failure.
func (c *Comm) refuse(ctx context.Context, what string, mine error) error {
	text, _ := json.Marshal(offer{Err: mine.Error()})
	if _, err := c.gather(ctx, what, bootstrap.Blob{Bytes: text}); err != nil {
		return errors.Join(mine, err)
	}
	return mine
}

// exchange exchanges what each rank brings, reads it, and imports it; if that fails on one rank it fails on all. what
// is the call: ranks that make different ones are told so.
func (c *Comm) exchange(ctx context.Context, what string, mine bootstrap.Blob, read func(int, bootstrap.Blob) error, use func([]bootstrap.Blob) error) error {
	blobs, err := c.gather(ctx, what, mine)
	if err != nil {
		return err
	}
	for r, b := range blobs {
		if c.isOut(r) {
			continue
		}
		var o struct{ Err string }
		if jerr := json.Unmarshal(b.Bytes, &o); jerr != nil {
			err = cmp.Or(err, fmt.Errorf("what rank %d offers: %w", r, jerr))
		} else if o.Err != "" {
			err = cmp.Or(err, ofKind(ErrRefused, fmt.Errorf("rank %d refused: %s", r, o.Err)))
		} else {
			err = cmp.Or(err, read(r, b))
		}
	}
	refused := err
	if err == nil {
		err = use(blobs)
	}
	for r, b := range blobs {
		closeFDs(r == c.rank, b)
	}
	if refused != nil {
		return refused // each rank has seen the same
	}
	return c.agree(ctx, what+", end", err)
}

func closeFDs(own bool, b bootstrap.Blob) {
	if own {
		return
	}
	for _, fd := range b.FDs {
		_ = sys.CloseFD(fd) // a mapping does not need it
	}
}

// Device is the window as kernels use it, by value. A copy of it that outlives Close is refused as Invalid.
func (w *Window) Device() gin.Window { return w.dev }

// Buffer is the memory of this rank's part.
func (w *Window) Buffer() *Buffer { return w.buf }

// Close ends the window on this rank, and waits for no other: kernels and peers that still use it are refused. It must
// not be called while a put of this rank from or to it is on its way.
func (w *Window) Close() error {
	w.once.Do(func() {
		c := w.comm
		ctx, cancel := context.WithTimeout(context.Background(), c.opt.Timeout)
		defer cancel()
		w.err = c.withdraw(ctx, w.dev.ID)
		w.unmap()
		w.err = errors.Join(w.err, w.unspread())
		w.buf.unuse()
		c.mu.Lock()
		delete(c.windows, w)
		c.mu.Unlock()
	})
	return w.err
}

// withdraw makes a window unknown to the device and to the proxy.
func (c *Comm) withdraw(ctx context.Context, id uint32) error {
	err := errors.Join(c.infos.setGen(id, 0), c.owner.RemoveWindow(ctx, id))
	c.infos.give(id)
	return err
}

func (w *Window) unmap() {
	c := w.comm
	ctx, cancel := context.WithTimeout(context.Background(), c.opt.Timeout)
	defer cancel()
	err := c.owner.With(ctx, func() {
		if len(w.export) > 0 {
			c.memory.Withdraw(w.export)
		}
		for _, r := range w.regions {
			if r != 0 {
				c.memory.Forget(r)
			}
		}
	})
	for _, m := range w.maps {
		if m != nil {
			err = cmp.Or(err, m.Free())
		}
	}
	if err != nil {
		c.opt.Log.Error("unmap a window", "rank", c.rank, "error", err)
	}
	w.maps, w.regions, w.export = nil, nil, nil
}
