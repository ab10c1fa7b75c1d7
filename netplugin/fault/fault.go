// SPDX-License-Identifier: Apache-2.0

// Package fault wraps a network and makes it misbehave: --net fault+shm. What it does is a text, words with commas between
// (netplugin.Faults.Text, DOORBELL_FAULTS):
//
//	seed=N        what is random follows from it; 1 if it is not given
//	reorder=P     operations are put off, so that those of other contexts and peers overtake them
//	delay=P       operations take effect late, or are reported late
//	split=P       operations are done in 2 to 4 pieces, the signal with the last
//	again=P       Post takes fewer operations than it is offered
//	stall=P       the way to a peer stands for a time
//	cut=P         a link is cut for a time: its socket really breaks where there is one; else nothing passes, and nothing is heard
//	all           each of these
//	duplicate=P   frames are sent twice, below what makes the network reliable; only for a network that has that (tcp)
//	unordered     the network says that it keeps no order, and reorder overtakes within a context too
//	kill=RANK     from some operation on, each one to that rank fails: it is lost
//	bitflip, lostput, doublesignal
//	              one operation of rank 0 goes wrong, as netplugin.Faults.Inject says, at a place that the seed chooses
//
// P is a percentage: of posts for again, of frames for duplicate, of operations for the others. Without it the usual one
// is taken. Those up to unordered are what a network may do: whoever keeps to package netplugin survives them, and so the
// wrapped network passes plugintest. The last ones do harm that must be noticed.
//
// Times are counted in calls of Post and Poll. Each fault draws from numbers of its own, which follow from seed, rank and
// fault: over a network that does everything in Post, the same calls meet the same faults. Links that break allocate; nothing
// else does.
package fault

import (
	"fmt"

	"github.com/doorbell-net/doorbell/netplugin"
)

func init() { netplugin.RegisterWrapper(wrapper{}) }

type wrapper struct{}

func (wrapper) Name() string { return "fault" }

func (wrapper) Wrap(p netplugin.Plugin, f netplugin.Faults) (netplugin.Plugin, error) {
	pl, err := parse(f.Text)
	if err != nil {
		return nil, err
	}
	skip := 0
	if f.Inject != "" {
		pl.inject = f.Inject
	} else if pl.inject != "" {
		skip = pl.chance(injects, f.Rank).below(maxSkip)
	}
	switch pl.inject {
	case "", netplugin.InjectBitFlip, netplugin.InjectLostPut, netplugin.InjectDoubleSignal:
	default:
		return nil, fmt.Errorf("inject %q: %s, %s and %s are accepted", pl.inject,
			netplugin.InjectBitFlip, netplugin.InjectLostPut, netplugin.InjectDoubleSignal)
	}
	return &plugin{Plugin: p, plan: pl, harmed: f.Rank, skip: skip}, nil
}

type plugin struct {
	netplugin.Plugin
	plan   plan
	harmed int // the rank on which something is injected
	skip   int // operations that would fit, before that
}

// Name says what is wrapped: "fault+shm".
func (p *plugin) Name() string { return "fault+" + p.Plugin.Name() }

// Powers are those of what is wrapped, save that it may be asked to keep no order.
func (p *plugin) Powers() netplugin.Powers {
	w := p.Plugin.Powers()
	w.Ordered = w.Ordered && !p.plan.unordered
	return w
}

// Open makes a rank's endpoint. It says once what it will do.
func (p *plugin) Open(c netplugin.Config) (netplugin.Endpoint, error) {
	base, err := p.Plugin.Open(c)
	if err != nil {
		return nil, err
	}
	e := base
	if p.plan.inject != "" && c.Rank == p.harmed {
		e = &spoiler{Endpoint: e, inject: p.plan.inject, skip: p.skip}
	}
	var u *endpoint
	if p.plan.unruly() {
		if u, err = newEndpoint(e, base, p.plan, c, p.Plugin.Powers()); err != nil {
			base.Close()
			return nil, fmt.Errorf("open %s on rank %d: %w", p.Name(), c.Rank, err)
		}
		e = u
	}
	if c.Log != nil && e != base {
		c.Log.Warn("fault: this network misbehaves", "rank", c.Rank, "network", p.Name(), "faults", p.plan.String())
	}
	if conn, ok := base.(netplugin.Connector); ok && e != base {
		return &connecting{e, conn, u}, nil
	}
	return e, nil
}

// connecting is the endpoint of a network that has to be connected, and still has to.
type connecting struct {
	netplugin.Endpoint
	netplugin.Connector
	unruly *endpoint // nil where it does not hold operations back
}

func (c *connecting) Lose(peer int) {
	c.Connector.Lose(peer)
	if c.unruly != nil {
		c.unruly.lose(peer, fmt.Errorf("rank %d: %w", peer, netplugin.ErrPeerLost))
	}
}

func (c *connecting) Moved() bool { return c.Connector.Moved() || c.unruly != nil && c.unruly.moved }
