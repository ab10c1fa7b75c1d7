// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/bootstrap"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/soft"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/gdaki"
	"github.com/doorbell-net/doorbell/internal/proxy"
	"github.com/doorbell-net/doorbell/internal/topo"
	"github.com/doorbell-net/doorbell/netplugin"
	_ "github.com/doorbell-net/doorbell/netplugin/shm" // the network within a machine is always there
	_ "github.com/doorbell-net/doorbell/netplugin/tcp" // and that between machines
)

// version is of what ranks say to each other; ranks of different ones refuse each other.
const version = 5

// Open joins a job as one of its ranks. Who this process is comes from the environment that "doorbell run" sets, unless
// Options says it. Collective: it returns when all ranks have come, or by ctx.
func Open(ctx context.Context, o Options) (*Comm, error) {
	if err := cmp.Or(o.fillRank(os.LookupEnv), o.fill(os.LookupEnv)); err != nil {
		return nil, ofKind(ErrInvalid, err)
	}
	if err := o.check(); err != nil {
		return nil, ofKind(ErrInvalid, err)
	}
	warnUnknown(o.Log)
	config := bootstrap.Config{
		Rank: o.Rank, Size: o.Size, Addr: o.Addr, Job: o.Job, Token: o.Token, LayoutHash: abi.LayoutHash(), Version: version,
		Timeout: o.Timeout, Log: o.Log, Interfaces: o.interfaces,
	}
	if o.launcher != "" && o.Rank == 0 {
		o.Log.Info("open", "launcher", o.launcher)
	}
	g, err := bootstrap.Join(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open: %w", kindOfGroup(err))
	}
	auth, err := bootstrap.AuthOf(g)
	if err != nil {
		g.Close()
		return nil, fmt.Errorf("open: %w", err)
	}
	processes := o.LocalSize
	if processes == 0 {
		processes = o.Size
	}
	if o.LocalRank < 0 {
		o.LocalRank = localRank(o.Rank, g.SameHost)
	}
	return open(ctx, o, g, auth, place{soft.Shared, processes, 1})
}

// localRank is a rank's number among those of its host, which need not be neighbours: for launchers that do not say it.
func localRank(rank int, sameHost func(rank int) bool) (n int) {
	for r := range rank {
		if sameHost(r) {
			n++
		}
	}
	return n
}

// makeLocal bounds what the ranks of a process wait for each other while they are made. They are all here, so this is no wait
// that Options.Timeout is for, which may be as short as a test of deadlines wants it.
const makeLocal = time.Minute

// Local makes n ranks in this process, each with a software device of its own, or all on one GPU (Options.Device) or dealt to
// several (Options.LocalGPUs). It is the way to try kernels, and to run them under the race detector.
func Local(n int, opts ...Options) ([]*Comm, error) {
	var o Options
	if len(opts) > 0 {
		o = opts[0]
	}
	if err := o.fill(os.LookupEnv); err != nil {
		return nil, ofKind(ErrInvalid, err)
	}
	o.Rank, o.Size = 0, n
	if err := o.check(); err != nil {
		return nil, ofKind(ErrInvalid, err)
	}
	if o.LocalGPUs < 1 || o.LocalGPUs > n {
		return nil, ofKind(ErrInvalid, fmt.Errorf("open: %d ranks to be dealt to %d GPUs, 1 to %d GPUs are accepted", n, o.LocalGPUs, n))
	}
	warnUnknown(o.Log)
	groups, err := bootstrap.Local(n)
	if err != nil {
		return nil, err
	}
	auths := bootstrap.LocalAuth(n)
	ctx, cancel := context.WithTimeout(context.Background(), max(makeLocal, o.Timeout))
	defer cancel()
	comms, errs := make([]*Comm, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			o := o
			o.Rank = r
			comms[r], errs[r] = open(ctx, o, groups[r], auths[r], place{soft.Heap, 1, n})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, c := range comms {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
		return nil, err
	}
	return comms, nil
}

var warnOnce sync.Once

func warnUnknown(log *slog.Logger) {
	warnOnce.Do(func() {
		for _, name := range env.Unknown(os.Environ()) {
			log.Warn("environment variable is not known", "name", name)
		}
	})
}

// engines has the progress of this process, one for each mode in use.
var (
	enginesMu sync.Mutex
	engines   = map[proxy.Mode]*proxy.Engine{}
)

func engineOf(m proxy.Mode) *proxy.Engine {
	enginesMu.Lock()
	defer enginesMu.Unlock()
	if engines[m] == nil {
		engines[m] = proxy.NewEngine(m)
	}
	return engines[m]
}

// open makes the communicator of a rank that is in its group.
func open(ctx context.Context, o Options, g bootstrap.Group, auth netplugin.Auth, p place) (*Comm, error) {
	mode, err := proxy.ParseMode(o.Progress)
	if err != nil {
		return nil, err
	}
	mode = proxy.Choose(mode, runtime.NumCPU(), p.processes)
	busy := p.processes // threads that poll
	if mode == proxy.Thread {
		busy *= 2
	}
	dev, err := o.openDevice(p, busy)
	if err != nil {
		// The others are told by this one's leaving.
		return nil, errors.Join(err, g.Close())
	}
	c := &Comm{
		opt: o, together: p.together(busy), rank: o.Rank, size: o.Size, group: g, ticked: make(chan struct{}),
		dev:    dev,
		engine: engineOf(mode), oneProcess: p.ranks == o.Size,
		lost: map[int]error{}, out: make([]bool, o.Size), streams: map[*Stream]struct{}{}, graphs: map[*Graph]struct{}{}, devComms: map[*DevComm]struct{}{},
		windows: map[*Window]struct{}{}, signals: map[*SignalWindow]struct{}{}, buffers: map[*Buffer]struct{}{},
		gen: mathrand.Uint32(), // so that a window of another communicator is stale here
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.calling, c.hangUp = context.WithCancelCause(c.ctx)
	c.infos.dev = c.dev
	reach, err := c.discover(ctx)
	if err == nil {
		err = c.openNetwork(ctx, auth, reach)
	}
	if err == nil {
		err = c.cut(reach)
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	c.infos.ranks = c.size
	c.owner = proxy.NewOwner(c.rank, c.failed)
	if err := c.openNIC(ctx); err != nil {
		return nil, errors.Join(err, c.closeNIC(), c.endpoint.Close(), g.Close())
	}
	c.owner.Gone(g.Gone)
	c.engine.Add(c.owner)
	if c.engine.Mode() == proxy.Assisted {
		c.dev.SetProgress(func() bool { return c.engine.Assist(c.owner) })
	}
	if b, ok := c.dev.(interface{ Busy() bool }); ok {
		c.owner.StayAwake(b.Busy)
	}
	go c.housekeep()
	g.OnLost(c.lose)
	g.OnDeparted(func(rank int) { c.lose(rank, errLeft(rank)) })
	return c, nil
}

// failed is told of operations that were refused after they were posted.
func (c *Comm) failed(err error) {
	c.mu.Lock()
	if len(c.details) < 64 {
		c.details = append(c.details, err)
	}
	c.mu.Unlock()
	c.opt.Log.Error("an operation was refused after it was posted", "rank", c.rank, "error", err)
}

// hello is what each rank says of itself at the start.
type hello struct {
	RanksPerNode int
	Net          string
	Wish         gdaki.Wish
	Device       string
	GPU          string   // which of all that there are, "" for none
	Multicast    bool     // it may be used there
	Probe        [16]byte // stands at the start of its probe memory
	Bytes        int
	Reach        []bool // in the second round: whose probe it could read
}

// discover finds who reaches whose memory: reach[a][b] says that rank a mapped rank b's and read it.
func (c *Comm) discover(ctx context.Context) (reach [][]bool, err error) {
	probe, err := c.dev.Alloc(4096)
	if err != nil {
		return nil, c.agree(ctx, "discover nodes", err)
	}
	defer probe.Free()
	me := hello{RanksPerNode: c.opt.RanksPerNode, Net: c.opt.Net, Wish: c.wish(), Device: c.dev.Name(), Bytes: 4096}
	if g, ok := c.dev.(interface{ GPU() string }); ok {
		me.GPU = g.GPU()
	}
	if m, ok := c.dev.(device.Multicaster); ok {
		me.Multicast = m.MayMulticast() == nil
	}
	rand.Read(me.Probe[:])
	if err := probe.Write(0, me.Probe[:]); err != nil {
		return nil, c.agree(ctx, "discover nodes", err)
	}
	blob, err := handleBlob(me, probe.Handle())
	if err != nil {
		return nil, c.agree(ctx, "discover nodes", err)
	}
	blobs, err := c.gather(ctx, "discover nodes", blob)
	if err != nil {
		return nil, err
	}
	me.Reach = make([]bool, c.size)
	all := make([]hello, c.size)
	for r, b := range blobs {
		err = cmp.Or(err, json.Unmarshal(b.Bytes, &all[r]))
		me.Reach[r] = r == c.rank || c.group.SameHost(r) && c.readProbe(r, b, &all[r])
		closeFDs(r == c.rank, b)
		if h := &all[r]; err == nil && (h.RanksPerNode != me.RanksPerNode || h.Net != me.Net || h.Device != me.Device || h.Multicast != me.Multicast) {
			err = ofKind(ErrDisagree, fmt.Errorf("rank %d has %d ranks per node, network %q, device %q and multicast %v, rank %d has %d, %q, %q and %v: they must agree",
				c.rank, me.RanksPerNode, me.Net, me.Device, me.Multicast, r, h.RanksPerNode, h.Net, h.Device, h.Multicast))
		}
	}
	if err == nil {
		err = c.choose(all)
	}
	mine, jerr := json.Marshal(me)
	if err := c.agree(ctx, "compare options", cmp.Or(err, jerr)); err != nil {
		return nil, err
	}
	// Probes stay until all have looked.
	blobs, err = c.gather(ctx, "compare nodes", bootstrap.Blob{Bytes: mine})
	if err != nil {
		return nil, err
	}
	reach = make([][]bool, c.size)
	gpus := make([]string, c.size)
	for r, b := range blobs {
		if err := json.Unmarshal(b.Bytes, &all[r]); err != nil || len(all[r].Reach) != c.size {
			return nil, fmt.Errorf("rank %d: what rank %d reaches: %q is no answer of %d ranks (%v)", c.rank, r, b.Bytes, c.size, err)
		}
		reach[r] = all[r].Reach
		gpus[r] = all[r].GPU
	}
	c.gpus = gpus
	return reach, nil
}

// cut cuts the world into nodes.
func (c *Comm) cut(reach [][]bool) (err error) {
	if c.lsaSize, err = topo.LSASize(reach, c.opt.RanksPerNode); err != nil {
		return ofKind(ErrCannot, fmt.Errorf("rank %d: %w", c.rank, err))
	}
	c.lsaRank = c.rank % c.lsaSize
	if c.plugin.Powers().Mapped {
		for r, ok := range reach[c.rank] {
			if !ok {
				return ofKind(ErrCannot, fmt.Errorf("rank %d: network %s reaches only memory that this process maps, and rank %d's it cannot map", c.rank, c.plugin.Name(), r))
			}
		}
	}
	return nil
}

// readProbe says whether a rank's memory handle really passed.
func (c *Comm) readProbe(rank int, b bootstrap.Blob, h *hello) bool {
	m, err := c.importMemory(b, 0, h.Bytes)
	if err != nil {
		c.opt.Log.Debug("no memory in common", "rank", c.rank, "with", rank, "error", err)
		return false
	}
	defer m.Free()
	var got [16]byte
	return m.Read(0, got[:]) == nil && got == h.Probe
}

// handleBlob is memory handles and something to say, for an all-gather.
func handleBlob(say any, handles ...device.Handle) (bootstrap.Blob, error) {
	text, err := json.Marshal(say)
	b := bootstrap.Blob{Bytes: text}
	local := make([]any, len(handles))
	for i, h := range handles {
		local[i] = h.Local
		if h.FD >= 0 {
			b.FDs = append(b.FDs, h.FD)
		}
	}
	b.Local = local
	return b, err
}

// importMemory maps memory number i of those that handleBlob described.
func (c *Comm) importMemory(b bootstrap.Blob, i, bytes int) (device.Memory, error) {
	h := device.Handle{FD: -1, Bytes: bytes}
	if local, ok := b.Local.([]any); ok && i < len(local) {
		h.Local = local[i]
	}
	if i < len(b.FDs) {
		h.FD = b.FDs[i]
	}
	return c.dev.Import(h)
}
