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
	"github.com/doorbell-net/doorbell/internal/bootstrap"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/proxy"
)

// SignalWindow is memory of each rank whose words are signals: signals at addresses, beside those that a device
// communicator has by id. All its device communicators and contexts raise the same ones.
type SignalWindow struct {
	comm *Comm
	dev  gin.SignalWindow
	// The words that the network raises, those that LSA peers raise, and what resets remember: see abi.SignalWindow.
	net, lsa, offset device.Memory
	imported         Window // the peers' net words
	lsaMaps          []device.Memory
	once             sync.Once
	err              error
}

// maxSignalWindow bounds the signals of a window.
const maxSignalWindow = 1 << 28

// RegisterSignals makes a window of so many signals on this rank, 1 to 268,435,456, which are 0. Collective; the numbers
// may differ. It takes 24 bytes for each. If it fails on one rank it fails on all, with that rank's reason.
func (c *Comm) RegisterSignals(ctx context.Context, signals int) (*SignalWindow, error) {
	const what = "register signals"
	err := c.begin(what)
	if err != nil {
		return nil, err
	}
	defer c.calls.Done()
	w := &SignalWindow{comm: c, imported: Window{comm: c}}
	if err = w.alloc(signals); err == nil {
		err = w.register(ctx)
	} else {
		err = c.refuse(ctx, what, err)
	}
	if err != nil {
		return nil, fmt.Errorf("rank %d: %s: %w", c.rank, what, errors.Join(err, w.free()))
	}
	c.mu.Lock()
	c.signals[w] = struct{}{}
	c.mu.Unlock()
	return w, nil
}

func (w *SignalWindow) alloc(signals int) (err error) {
	if signals < 1 || signals > maxSignalWindow {
		return ofKind(ErrInvalid, fmt.Errorf("%d signals, 1 to %d are accepted", signals, maxSignalWindow))
	}
	dev, bytes := w.comm.dev, 8*signals
	w.net, err = dev.AllocHost(bytes)
	if err == nil {
		w.lsa, err = dev.Alloc(bytes)
	}
	if err == nil {
		w.offset, err = dev.Alloc(bytes)
	}
	w.dev.Size = uint64(bytes)
	return err
}

func (w *SignalWindow) register(ctx context.Context) error {
	const what = "register signals"
	c, bytes := w.comm, int(w.dev.Size)
	export, err := c.export(ctx, w.net.Bytes()[:bytes], true)
	if err != nil {
		return c.refuse(ctx, what, err)
	}
	w.imported.export = export
	blob, err := handleBlob(offer{Bytes: bytes, Size: bytes, Export: export}, w.net.Handle(), w.lsa.Handle())
	if err != nil {
		return c.refuse(ctx, what, err)
	}
	offers := make([]offer, c.size)
	err = c.exchange(ctx, what, blob, func(r int, b bootstrap.Blob) error { return json.Unmarshal(b.Bytes, &offers[r]) },
		func(blobs []bootstrap.Blob) error {
			if w.imported.maps, w.imported.regions, err = c.importAll(ctx, blobs, offers, false); err != nil {
				return err
			}
			if w.lsaMaps, err = c.importPeers(blobs, 1, func(r int) int { return offers[r].Bytes }); err != nil {
				return err
			}
			return w.publish(ctx, offers)
		})
	if err != nil && !w.dev.Info.IsNil() {
		err = errors.Join(err, c.withdraw(ctx, w.dev.ID))
	}
	return err
}

// publish makes the window known to the device and to the proxy.
func (w *SignalWindow) publish(ctx context.Context, offers []offer) error {
	c := w.comm
	id, gen, info, err := c.enter(offers, w.imported.regions, gpu.Ptr[byte]{}, w.lsa.Ptr(), func(r int) gpu.Ptr[byte] { return w.lsaMaps[r].Ptr() })
	if err != nil {
		return err
	}
	w.dev = gin.SignalWindow{Info: info, Net: w.net.Ptr(), LSA: w.lsa.Ptr(), Offset: w.offset.Ptr(), Size: w.dev.Size, ID: id, Gen: gen, LSA0: int32(c.rank - c.lsaRank)}
	if err := c.owner.AddWindow(ctx, &proxy.Window{ID: id, Gen: gen, Size: int(w.dev.Size), Peers: w.imported.regions, Signals: true}); err != nil {
		return err // withdraw gives the id back
	}
	return c.infos.setGen(id, gen)
}

// Device is the window as kernels use it, by value. A copy of it that outlives Close is refused as Invalid.
func (w *SignalWindow) Device() gin.SignalWindow { return w.dev }

// Close ends the window on this rank, and waits for no other: kernels and peers that still use it are refused. It must
// not be called while a kernel of this rank waits for one of its signals.
func (w *SignalWindow) Close() error {
	w.once.Do(func() {
		c := w.comm
		ctx, cancel := context.WithTimeout(context.Background(), c.opt.Timeout)
		defer cancel()
		w.err = errors.Join(c.withdraw(ctx, w.dev.ID), w.free())
		c.mu.Lock()
		delete(c.signals, w)
		c.mu.Unlock()
	})
	return w.err
}

func (w *SignalWindow) free() error {
	w.imported.unmap()
	var err error
	for _, m := range append(w.lsaMaps, w.net, w.lsa, w.offset) {
		if m != nil {
			err = cmp.Or(err, m.Free())
		}
	}
	w.lsaMaps, w.net, w.lsa, w.offset = nil, nil, nil, nil
	return err
}
