// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/bootstrap"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/gdaki"
	"github.com/doorbell-net/doorbell/netplugin"
	_ "github.com/doorbell-net/doorbell/netplugin/ce" // the network of a device's copy engines, within a process
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	_ "github.com/doorbell-net/doorbell/netplugin/devnic/mlx5"    // ConnectX
	_ "github.com/doorbell-net/doorbell/netplugin/devnic/softnic" // the NIC that is always there
	_ "github.com/doorbell-net/doorbell/netplugin/dma"            // copy engines between processes
	_ "github.com/doorbell-net/doorbell/netplugin/shm"            // the network within a machine is always there
	_ "github.com/doorbell-net/doorbell/netplugin/staged"         // device memory over it
	_ "github.com/doorbell-net/doorbell/netplugin/tcp"            // and that between machines
)

// reconnect is how long a connection of the network that broke may take to be made again.
const reconnect = 10 * time.Second

// openNetwork makes this rank's endpoint, and connects it to all others if that has to be. reach is discover's. Collective.
func (c *Comm) openNetwork(ctx context.Context, auth netplugin.Auth, reach [][]bool) (err error) {
	c.plugin, err = netplugin.Lookup(c.chooseNetwork(reach), netplugin.Faults{Text: c.opt.Faults, Inject: c.opt.Inject})
	err = ofKind(ErrInvalid, err)
	if err == nil {
		if p := c.plugin.Powers(); p.MaxBytes < abi.CellPayload {
			err = ofKind(ErrCannot, fmt.Errorf("open: network %s moves at most %d bytes at once, %d or more are accepted: small puts are never cut", c.plugin.Name(), p.MaxBytes, abi.CellPayload))
		} else if t := c.opt.TrafficClass; t < 0 || t > 255 {
			err = ofKind(ErrInvalid, fmt.Errorf("open: traffic class %d, 0 to 255 are accepted", t))
		} else if t != 0 && p.Network && !p.TrafficClass {
			err = fmt.Errorf("open: traffic class %d: network %s marks no packets, 0 is accepted: %w", t, c.plugin.Name(), ErrCannot)
		}
	}
	if err == nil {
		c.endpoint, err = c.plugin.Open(netplugin.Config{
			Rank: c.rank, Ranks: c.size, Epoch: c.group.Epoch(), Auth: auth, Interfaces: c.opt.addresses, Lanes: c.opt.lanes, TrafficClass: c.opt.TrafficClass,
			Timeout: min(c.opt.Timeout, reconnect), Copier: c.copier(), Log: c.opt.Log,
		})
	}
	if err := c.agree(ctx, "open", err); err != nil {
		return err
	}
	return c.meet(ctx)
}

// wish is what this rank asks for to drive the network, and what it has.
func (c *Comm) wish() gdaki.Wish {
	w := gdaki.Wish{Backend: c.opt.Backend, By: c.opt.backend.By, NIC: c.opt.nic}
	if c.opt.Net != "auto" {
		w.Net = c.opt.Net
	}
	if w.Backend != "proxy" {
		w.NICs = gdaki.Look(w.Backend, w.NIC)
	}
	return w
}

// choose finds what drives the network from what all ranks said.
func (c *Comm) choose(all []hello) (err error) {
	wishes := make([]gdaki.Wish, len(all))
	for r, h := range all {
		wishes[r] = h.Wish
	}
	if c.choice, err = gdaki.Choose(wishes); err != nil {
		kind := ErrCannot
		if errors.Is(err, gdaki.ErrDiffer) {
			kind = ErrDisagree
		}
		return ofKind(kind, fmt.Errorf("rank %d: open: %w", c.rank, err))
	}
	// That a variable of NCCL's was followed, or that one was overruled, is news to whoever set it for NCCL.
	if by := c.opt.backend; c.rank == 0 && (len(by.Over) > 0 || strings.HasPrefix(by.By, "NCCL_")) {
		c.opt.Log.Info("who drives the network", "backend", c.opt.Backend, "says", by.By, "overruled", strings.Join(by.Over, " "))
	}
	return nil
}

// openNIC makes the NIC that this rank's kernels drive, if they do. Collective.
func (c *Comm) openNIC(ctx context.Context) error {
	c.memory = c.endpoint
	name := c.choice.NIC
	if name == "" {
		return nil
	}
	p, err := devnic.Lookup(name)
	if err == nil {
		c.nic, err = gdaki.Open(ctx, p, devnic.Config{
			Rank: c.rank, Ranks: c.size, Wire: c.endpoint, Powers: c.plugin.Powers(), Pinned: c.pinned,
			MapRegisters: c.dev.MapRegisters, DMABuf: c.dev.DMABuf, TrafficClass: c.opt.TrafficClass,
		}, c.owner)
	}
	if err != nil && c.opt.Backend == "auto" {
		err = fmt.Errorf("%w; %s=proxy does without a NIC", err, env.Backend.Name())
	}
	if err != nil {
		err = fmt.Errorf("open: backend gdaki: NIC %s: %w", name, err)
	}
	if err := c.agree(ctx, "open NIC", err); err != nil {
		return err
	}
	c.memory = c.nic
	if c.rank == 0 {
		c.tellNIC()
	}
	return nil
}

// tellNIC says in one line what kernels drive.
func (c *Comm) tellNIC() {
	if !c.nic.Facts().Emulated {
		c.opt.Log.Info("kernels drive a NIC", "nic", c.choice.NIC, "port", c.nic.Facts().About)
		return
	}
	about := []any{"nic", c.choice.NIC, "wire", c.plugin.Name()}
	if c.choice.Why != "" {
		about = append(about, "why", c.choice.Why)
	}
	c.opt.Log.Info("kernels drive an emulated NIC: its figures are none of hardware", about...)
}

// pinned is memory of the host that kernels reach.
func (c *Comm) pinned(bytes int) (mem gpu.Ptr[byte], free func() error, err error) {
	m, err := c.dev.AllocHost(bytes)
	if err != nil {
		return mem, nil, err
	}
	return m.Ptr(), m.Free, nil
}

func (c *Comm) closeNIC() error {
	if c.nic == nil {
		return nil
	}
	return c.nic.Close()
}

// chooseNetwork replaces auto, also behind fault+: where each rank reaches each other's memory, the copy engines of a device
// that has some, within a process or between some, else shared memory; else tcp, staged where windows may be out of the host's
// reach. All ranks choose the same.
func (c *Comm) chooseNetwork(reach [][]bool) string {
	best, apart := "shm", "tcp"
	if !c.dev.Powers().HostView {
		if best, apart = "dma", "staged+tcp"; c.oneProcess {
			best = "ce"
		}
	}
	for _, r := range reach {
		if slices.Contains(r, false) {
			best = apart
		}
	}
	if base, ok := strings.CutSuffix(c.opt.Net, "auto"); ok && (base == "" || strings.HasSuffix(base, "+")) {
		return base + best
	}
	return c.opt.Net
}

// meet connects the network's endpoints, if they have to be.
func (c *Comm) meet(ctx context.Context) error {
	n, ok := c.endpoint.(netplugin.Connector)
	if !ok {
		return nil
	}
	blobs, err := c.gather(ctx, "exchange addresses", bootstrap.Blob{Bytes: n.Address()})
	if err != nil {
		return err
	}
	addrs := make([][]byte, len(blobs))
	for r, b := range blobs {
		addrs[r] = b.Bytes
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	return c.agree(ctx, "connect", n.Connect(ctx, addrs))
}
