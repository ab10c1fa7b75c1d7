// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/bootstrap"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/gdaki"
	"github.com/doorbell-net/doorbell/internal/proxy"
	"github.com/doorbell-net/doorbell/netplugin"
)

// Comm is one rank of a job.
type Comm struct {
	opt      Options
	rank     int
	size     int
	lsaRank  int
	lsaSize  int
	together int      // ranks that run at once, 0 for all
	gpus     []string // by rank: which of all GPUs it runs on, "" for none
	group    bootstrap.Group
	dev      device.Device
	plugin   netplugin.Plugin
	endpoint netplugin.Endpoint
	choice   gdaki.Choice        // of what drives the network
	nic      *gdaki.NIC          // that kernels drive, over endpoint if it is an emulated one; nil with the proxy
	memory   netplugin.Registrar // whichever of the two knows this rank's memory
	engine   *proxy.Engine

	oneProcess bool // all ranks are of this process
	owner      *proxy.Owner
	infos      windowInfos

	ctx    context.Context // ends with Abort, Revoke and Close
	cancel context.CancelCauseFunc
	// Collective calls end with calling, as soon as Close begins; calls counts those that make something, which Close waits for.
	calling context.Context
	hangUp  context.CancelCauseFunc
	calls   sync.WaitGroup
	ticked  chan struct{} // the housekeeper has ended

	mu       sync.Mutex
	closed   bool
	ended    abi.Status // Aborted or Revoked
	gen      uint32
	nextCtx  int32
	lost     map[int]error
	out      []bool  // by rank: not of those that collectives are among
	details  []error // of operations that failed after they were posted
	streams  map[*Stream]struct{}
	graphs   map[*Graph]struct{}
	devComms map[*DevComm]struct{}
	windows  map[*Window]struct{}
	signals  map[*SignalWindow]struct{}
	buffers  map[*Buffer]struct{}
}

// Rank is this rank's number, 0 to Size-1.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Comm) Size() int { return c.size }

// LSARank is this rank's number in its LSA team, LSASize the size of that: consecutive ranks that load and store each
// other's windows.
func (c *Comm) LSARank() int { return c.lsaRank }

// LSASize is the size of each rank's LSA team.
func (c *Comm) LSASize() int { return c.lsaSize }

// Nodes is the number of LSA teams.
func (c *Comm) Nodes() int { return c.size / c.lsaSize }

// Hosts is the number of machines that the ranks run on, told by their kernels' boot ids: namespaces and containers of one
// machine are one. 0 where a kernel does not tell.
func (c *Comm) Hosts() int { return bootstrap.Machines(c.group) }

// Info is what a communicator is made of. Results carry it.
type Info struct {
	Net      string // the network plugin, or the real NIC that kernels drive
	Backend  string // who drives the network: proxy, or gdaki, kernels themselves
	NIC      string // what kernels drive, empty with the proxy
	Device   string // what runs the kernels
	GPUs     int    // how many GPUs all ranks run on together
	Progress string // who drives the proxy: thread or assisted
	Network  bool   // whether bytes leave the machine's memory
	Emulated bool   // whether the device, or the NIC, is one in software
}

// distinct counts the names that are not empty, each once.
func distinct(names []string) int {
	all := slices.Compact(slices.Sorted(slices.Values(names)))
	if len(all) > 0 && all[0] == "" {
		all = all[1:]
	}
	return len(all)
}

// Info says what this communicator is made of.
func (c *Comm) Info() Info {
	i := Info{
		Net: c.plugin.Name(), Backend: "proxy", Device: c.dev.Name(), GPUs: distinct(c.gpus), Progress: c.engine.Mode().String(),
		Network: c.plugin.Powers().Network, Emulated: c.dev.Name() == "soft",
	}
	if c.nic != nil {
		i.Backend, i.NIC, i.Emulated = "gdaki", c.choice.NIC, i.Emulated || c.nic.Facts().Emulated
		if c.choice.Real {
			i.Net, i.Network = i.NIC, true
		}
	}
	return i
}

// Warps is how many warps of kernels this rank's device holds at once: its share, where ranks share one.
func (c *Comm) Warps() int { return c.dev.MaxCooperativeWarps() }

// Timeout is the deadline of waits that have none of their own.
func (c *Comm) Timeout() time.Duration { return c.opt.Timeout }

// Barrier waits until each rank has called it. Collective.
func (c *Comm) Barrier(ctx context.Context) error {
	if _, err := c.gather(ctx, "barrier", bootstrap.Blob{}); err != nil {
		return fmt.Errorf("rank %d: barrier: %w", c.rank, err)
	}
	return nil
}

// AllGather gives each rank's bytes to all, by rank; nil for one that is out, see Survivors. Collective: it is for set-up,
// not for data.
func (c *Comm) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	blobs, err := c.gather(ctx, "all-gather", bootstrap.Blob{Bytes: mine})
	if err != nil {
		return nil, fmt.Errorf("rank %d: all-gather: %w", c.rank, err)
	}
	out := make([][]byte, len(blobs))
	for i, b := range blobs {
		out[i] = b.Bytes
	}
	return out, nil
}

// gather is a collective exchange that ends with the communicator too.
func (c *Comm) gather(ctx context.Context, name string, mine bootstrap.Blob) ([]bootstrap.Blob, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	blobs, err := c.group.AllGather(ctx, name, mine)
	if err != nil {
		return nil, c.ofGroup(err)
	}
	return blobs, nil
}

// ofGroup is an error of the group, which says rank and call, with its kind, and with the communicator's end if that is why.
func (c *Comm) ofGroup(err error) error {
	err = kindOfGroup(err)
	if cause := context.Cause(c.calling); cause != nil {
		return errors.Join(cause, err)
	}
	return err
}

// bound is ctx, ended by the communicator's end and by the default deadline if it has none.
func (c *Comm) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	var undo context.CancelFunc = func() {}
	if _, ok := ctx.Deadline(); !ok {
		ctx, undo = context.WithTimeoutCause(ctx, c.opt.Timeout, fmt.Errorf("no end within %v: %w", c.opt.Timeout, context.DeadlineExceeded))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.calling, func() { cancel(context.Cause(c.calling)) })
	return ctx, func() {
		stop()
		cancel(nil)
		undo()
	}
}

// agree is a collective exchange of one rank's failure: each rank gets an error if one had one.
func (c *Comm) agree(ctx context.Context, what string, mine error) error {
	text := ""
	if mine != nil {
		text = mine.Error()
	}
	blobs, err := c.gather(ctx, what, bootstrap.Blob{Bytes: []byte(text)})
	if mine != nil {
		return mine
	}
	if err != nil {
		return err
	}
	for r, b := range blobs {
		if len(b.Bytes) > 0 {
			return ofKind(ErrRefused, fmt.Errorf("rank %d: %s: rank %d refused: %s", c.rank, what, r, b.Bytes))
		}
	}
	return nil
}

// Lost lists the ranks that are lost or have left, with the reason. Collective calls that wait for one fail with ErrPeerLost.
func (c *Comm) Lost() map[int]error {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[int]error, len(c.lost))
	for r, err := range c.lost {
		out[r] = err
	}
	for _, r := range c.group.Departed() { // also one that lose is yet to be told of
		out[r] = cmp.Or(out[r], errLeft(r))
	}
	return out
}

func errLeft(rank int) error { return fmt.Errorf("rank %d has left: %w", rank, ErrClosed) }

// Survivors agrees with all ranks that are left on who they are, and returns the same ranks, rising, on each of them. From
// then on collectives are among those, and ranks keep their numbers. Windows and device communicators that are made
// afterwards have new memory, which no other rank has ever reached; in them the part of a rank that is out has size 0,
// and a wait for it ends with PeerLost. A rank that is out and lives all the same may still write to what was registered
// before.
//
// It may be called at any time, whether or not a rank is lost, and each rank that is left must call it: it returns when
// all have. Collectives of others that would wait for a rank which has called it fail, so that they come to theirs. A rank
// that dies afterwards was one of them; then collectives fail again, and it is called again. An error names the ranks that
// live and did not call by the deadline of ctx, by default Timeout, or wraps ErrCutOff: the others took this rank for lost,
// or it does not reach enough of them.
func (c *Comm) Survivors(ctx context.Context) ([]int, error) {
	if err := c.live("survivors"); err != nil {
		return nil, err
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	set, err := c.group.Survivors(ctx)
	if err != nil {
		return nil, fmt.Errorf("rank %d: survivors: %w", c.rank, c.ofGroup(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.out {
		c.out[r] = !slices.Contains(set, r)
	}
	return set, nil
}

// Expel has the ranks agree that one of them is lost, whether or not it lives: for who knows that a rank is gone before the
// detector does, or that it is of no use, too slow say. cause is told where this rank's errors tell of the loss. One rank's
// word is enough. To all it is a loss as any other: waits for that rank end with PeerLost soon, and Survivors goes on without
// it; one that is called behind Expel is without it in any case. The rank itself ends as one that is cut off: to it all
// others are lost, and its collectives fail. It does not come back.
//
// It returns at once, and may be called from any goroutine and by several ranks. A majority of the ranks has to agree, that
// one included while it answers; of two ranks either may expel the other while both answer, and only the lower one else. A
// rank that is lost already or has left is let be. It fails for this rank itself, one out of range, and a closed communicator.
func (c *Comm) Expel(rank int, cause error) error {
	if err := c.live("expel"); err != nil {
		return err
	}
	if cause == nil {
		cause = errNoCause
	}
	switch err := c.group.Expel(rank, cause); {
	case errors.Is(err, bootstrap.ErrClosed):
		return ofKind(ErrClosed, err)
	default:
		return ofKind(ErrInvalid, err)
	}
}

// Members are the ranks that collectives are among, rising: all, or those of the last Survivors.
func (c *Comm) Members() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var in []int
	for r, out := range c.out {
		if !out {
			in = append(in, r)
		}
	}
	return in
}

// isOut says that collectives go on without a rank.
func (c *Comm) isOut(rank int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out[rank]
}

// lose ends all waits for a rank.
func (c *Comm) lose(rank int, cause error) {
	c.mu.Lock()
	if c.lost[rank] != nil {
		c.mu.Unlock()
		return
	}
	c.lost[rank] = cause
	var dcs []*DevComm
	for dc := range c.devComms {
		dcs = append(dcs, dc)
	}
	c.mu.Unlock()
	for _, dc := range dcs {
		dc.lose(rank, abi.RankLost)
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.opt.Timeout)
	defer cancel()
	if err := c.owner.Lose(ctx, rank); err != nil {
		c.opt.Log.Error("mark a lost rank", "rank", c.rank, "lost", rank, "error", err)
	}
}

// loseGone ends what is on its way to ranks that are gone, also where lose is yet to be told of them.
func (c *Comm) loseGone(ctx context.Context) (err error) {
	for r := range c.size {
		if c.group.Gone(r) {
			err = cmp.Or(err, c.owner.Lose(ctx, r))
		}
	}
	return err
}

// errNoCause stands for a cause that is nil.
var errNoCause = errors.New("no cause given")

// Abort ends every wait of this rank, on host and device, with Aborted. The communicator is of no use afterwards but
// to be closed. The first call counts. It is safe from any goroutine.
func (c *Comm) Abort(cause error) {
	if cause == nil {
		cause = errNoCause
	}
	c.end(abi.Aborted, fmt.Errorf("%w: %w", ErrAborted, cause))
}

// Revoke is Abort with the status Revoked: the communicator is given up, though nothing failed.
func (c *Comm) Revoke() { c.end(abi.Revoked, ErrRevoked) }

func (c *Comm) end(s abi.Status, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == abi.OK {
		c.ended = s
		c.cancel(cause) // status and reason are of the same call
	}
	for dc := range c.devComms {
		dc.end(c.ended)
	}
}

// housekeep logs who is waited for for long.
func (c *Comm) housekeep() {
	defer close(c.ticked)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		for dc := range c.devComms {
			w := dc.waiter()
			if w == nil {
				continue
			}
			what := "a kernel waits for long"
			if w.Status == gin.Timeout {
				what = "a wait of a kernel timed out"
			}
			c.opt.Log.Warn(what, "rank", c.rank, "for", w.Op, "peer", w.Peer, "context", w.Context,
				"id", w.ID, "wanted", w.Wanted, "seen", w.Seen, "since", w.Since)
		}
		c.mu.Unlock()
	}
}

// Close ends the communicator and all that was made from it: streams first, then graphs, device communicators, windows and
// buffers. Calls that other goroutines are in end with ErrClosed, and what they have made ends too. It waits for kernels that
// run, each of which ends by its deadlines, and for no other rank. Ranks that still wait for this one get PeerLost.
func (c *Comm) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	errs := []error{c.settle()}
	c.mu.Lock()
	streams, graphs, dcs, windows, signals, buffers := keys(c.streams), keys(c.graphs), keys(c.devComms), keys(c.windows), keys(c.signals), keys(c.buffers)
	c.mu.Unlock()
	for _, s := range streams {
		errs = append(errs, s.Close())
	}
	for _, g := range graphs {
		errs = append(errs, g.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.opt.Timeout)
	defer cancel()
	for _, dc := range dcs {
		errs = append(errs, dc.drain(ctx))
	}
	// Before any memory goes: who still puts there has lost a rank, and is not out of bounds. The goodbye alone does not tell all of
	// that: it goes another way than what this rank would refuse.
	errs = append(errs, c.group.Close(), c.owner.Close(ctx, c.endpoint.Close))
	for _, dc := range dcs {
		errs = append(errs, dc.release())
	}
	for _, w := range windows {
		errs = append(errs, w.Close())
	}
	for _, w := range signals {
		errs = append(errs, w.Close())
	}
	for _, b := range buffers {
		errs = append(errs, b.Free())
	}
	c.cancel(ErrClosed)
	<-c.ticked
	c.engine.Remove(c.owner)
	c.dev.SetProgress(nil)
	errs = append(errs, c.closeNIC(), c.infos.free(), c.dev.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close rank %d: %w", c.rank, err)
	}
	return nil
}

// settling is how long calls may take to end whose context has, on a machine that has much else to do.
const settling = 10 * time.Second

// settle ends the calls that make something, so that all they made is there to be closed.
func (c *Comm) settle() error {
	c.hangUp(ErrClosed)
	ended := make(chan struct{})
	go func() {
		c.calls.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(settling):
		return fmt.Errorf("calls of this communicator have not ended within %v", settling)
	}
}

func keys[K comparable](m map[K]struct{}) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}

// count counts a call that makes something until c.calls.Done, unless the communicator is closed.
func (c *Comm) count() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.calls.Add(1)
	}
	return !c.closed
}

// begin is live and count.
func (c *Comm) begin(what string) error {
	if err := c.live(what); err != nil {
		return err
	}
	if !c.count() {
		return fmt.Errorf("rank %d: %s: communicator: %w", c.rank, what, ErrClosed)
	}
	return nil
}

// live refuses calls after Close, Abort and Revoke.
func (c *Comm) live(what string) error {
	if err := context.Cause(c.ctx); err != nil {
		return fmt.Errorf("rank %d: %s: %w", c.rank, what, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("rank %d: %s: communicator: %w", c.rank, what, ErrClosed)
	}
	return nil
}
