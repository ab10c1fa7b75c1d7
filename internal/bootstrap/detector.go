// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	beatPeriod     = time.Second
	defaultSuspect = 5 * time.Second
	maxEarly       = 256 // messages of ranks that have begun before us
)

// detector drives a member with the events of a mesh: ends of sockets, signs of life, messages, ticks. It counts from
// start on, when every pair is linked; a rank that ends before makes the join fail.
//
// Locks: detector, then mesh, link or group. Nobody calls it with one of those held.
type detector struct {
	g      *group
	m      *mesh
	limit  time.Duration
	period time.Duration
	quiet  atomic.Bool // stopped: no heartbeats any more

	mu     sync.Mutex
	sm     *member // nil before start
	early  []outgoing
	causes []error // what this rank itself saw of each
}

func newDetector(g *group, m *mesh, limit time.Duration) *detector {
	return &detector{g: g, m: m, limit: limit, period: min(beatPeriod, limit/5), causes: make([]error, g.size)}
}

// start begins to watch. It does nothing if the group ends, or has lost a rank already.
func (d *detector) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.g.mu.Lock()
	sm := newMember(d.g.rank, d.g.size, d.limit, d.period)
	lost := d.g.closed
	for r := range d.g.peers {
		lost = lost || d.g.peers[r].lost != nil
		if d.g.peers[r].departed != nil {
			sm.left(r)
		}
	}
	d.g.mu.Unlock()
	if lost || !d.m.spawn(d.watch) {
		return
	}
	d.sm = sm
	for _, o := range d.early {
		d.take(o.to, o.message)
	}
	d.early = nil
	d.flush()
}

// beat sends signs of life from the first link on. It does nothing else, so that nothing else can hold it up.
func (d *detector) beat() {
	wire, err := appendFrame(nil, &frame{kind: kindBeat})
	if err != nil {
		return // not reached
	}
	t := time.NewTicker(d.period)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-d.g.done:
			return
		}
		if d.quiet.Load() {
			return
		}
		for _, l := range d.m.all() {
			l.beat(wire)
		}
	}
}

// watch ticks.
func (d *detector) watch() {
	t := time.NewTicker(d.period)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-t.C:
		case <-d.g.done:
			return
		}
		now := time.Now()
		d.tick(now.Sub(last))
		last = now
	}
}

func (d *detector) tick(elapsed time.Duration) {
	links := d.m.all()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over() {
		return
	}
	for _, l := range links {
		if l.heard.Swap(false) || l.unread() {
			d.sm.heard(l.rank)
		}
	}
	d.sm.tick(elapsed)
	d.flush()
}

// ended, cut and left take what a link saw; cause is for whom it concerns here.
func (d *detector) ended(rank int, cause error) { d.saw(rank, cause, (*member).ended) }
func (d *detector) cut(rank int, cause error)   { d.saw(rank, cause, (*member).cut) }

func (d *detector) saw(rank int, cause error, tell func(*member, int)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over() {
		return // our own end of the socket
	}
	if d.sm == nil {
		d.g.setLost(rank, cause)
		return
	}
	if d.causes[rank] == nil {
		d.causes[rank] = cause
	}
	d.sm.because = cause.Error()
	tell(d.sm, rank)
	d.flush()
}

func (d *detector) left(rank int, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.g.setDeparted(rank, reason)
	if d.sm != nil {
		d.sm.left(rank)
		d.flush()
	}
}

// expel is transport.expel.
func (d *detector) expel(rank int, cause error) { d.saw(rank, cause, (*member).expel) }

// ask is transport.ask.
func (d *detector) ask(n uint32) []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sm == nil || d.over() {
		return nil
	}
	d.sm.ask(n)
	d.flush()
	return d.sm.unasked().list()
}

func (d *detector) receive(from int, payload []byte) error {
	msg, err := decodeMessage(payload, d.g.size)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sm == nil {
		if len(d.early) >= maxEarly {
			return fmt.Errorf("sent %d member messages before the group was complete", len(d.early))
		}
		d.early = append(d.early, outgoing{from, msg})
		return nil
	}
	d.take(from, msg)
	d.flush()
	return nil
}

func (d *detector) take(from int, msg message) {
	if msg.kind == msgStop && d.causes[from] == nil {
		d.causes[from] = fmt.Errorf("it has stopped: %s", msg.text)
	}
	d.sm.receive(from, msg)
}

// over reports whether this group is ending.
func (d *detector) over() bool {
	select {
	case <-d.g.done:
		return true
	default:
		return false
	}
}

// flush does what the member asks for. Sending does not block.
func (d *detector) flush() {
	send, decided := d.sm.take()
	for _, o := range send {
		if l := d.m.link(o.to); l != nil {
			wire, err := appendFrame(nil, &frame{kind: kindMember, payload: appendMessage(nil, &o.message)})
			if err != nil {
				d.g.log.Error("bootstrap: tell members", "rank", d.g.rank, "err", err) // not reached
				continue
			}
			l.send(&parcel{wire: wire, control: true})
		}
	}
	for _, v := range decided {
		causes := make([]error, len(v.lost))
		for i, r := range v.lost {
			switch {
			case d.causes[r] != nil:
				causes[i] = d.causes[r]
			case d.sm.mine.suspect.has(r):
				causes[i] = fmt.Errorf("%w: nothing came from it for %s", ErrSilent, d.limit)
			default:
				causes[i] = fmt.Errorf("%w (epoch %d)", ErrAgreed, v.epoch)
			}
		}
		if len(v.lost) > 0 {
			d.g.log.Warn("bootstrap: ranks are lost", "rank", d.g.rank, "lost", ranks(v.lost), "epoch", v.epoch, "err", causes[0])
		}
		d.g.decide(v, causes)
	}
	if d.sm.stopped && !d.quiet.Swap(true) {
		err := fmt.Errorf("%w: %s", ErrCutOff, d.sm.why)
		d.g.log.Error("bootstrap: this rank stops", "rank", d.g.rank, "err", err)
		d.g.cutOff(err)
	}
}
