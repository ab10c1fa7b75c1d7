// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// transport carries one rank's contributions to the other ranks of its group.
type transport interface {
	// contribute hands one contribution to every rank that can still be reached and never blocks on a peer. With fail set
	// the blob is not sent, only that this rank has none. On an error (descriptors that cannot be duplicated) it has sent
	// that failure instead.
	contribute(seq uint64, name string, mine Blob, fail string) error
	// ask says that this rank waits for agreement number n on who is left, the next or one that has been. It returns who of
	// the living has not asked, as far as is known here.
	ask(n uint32) []int
	// expel says that this rank wants another one out of the group.
	expel(rank int, cause error)
	// end releases everything and ends every goroutine, with a goodbye or without, within closeBound.
	end(goodbye bool, reason string)
}

// contribution is what came from one rank for one all-gather.
type contribution struct {
	seq  uint64
	name string
	blob Blob
	err  error // the rank, or the way from it, could not supply blob
}

func (c *contribution) drop() { closeAll(c.blob.FDs) }

// peer is what a group knows of another rank. Guarded by group.mu.
type peer struct {
	linked   bool // a way to it exists, or existed
	next     uint64
	inbox    []contribution // contiguous, ending at next-1
	bytes    int            // in inbox
	lost     error
	departed *DepartedError
	out      bool // not of the set that was agreed on last: all-gathers go on without it
	bootID   string
	unix     bool // descriptors can be passed
}

func (p *peer) gone() bool { return p.lost != nil || p.departed != nil }

// group is one rank's view of its job: who has contributed what, who is gone. Its transport calls deliver, setLost and
// setDeparted from its goroutines.
type group struct {
	rank, size int
	timeout    time.Duration
	warnAfter  time.Duration
	log        *slog.Logger
	tr         transport

	turn chan struct{} // one AllGather at a time
	wake chan struct{} // holds one token: something changed
	done chan struct{} // closed when Close or Kill begins
	once sync.Once

	mu     sync.Mutex
	closed bool
	seq    uint64 // of the next AllGather
	floor  uint64 // contributions below belong to rounds that ended
	peers  []peer
	notes  notifier
	epochs []decision     // all so far
	agreed [][]int        // the sets that were agreed on
	taken  uint32         // how many of them Survivors has returned
	called uint32         // the last agreement that this rank began
	cut    error          // why this rank has no part any more
	hosts  [][]netip.Addr // from which each rank may connect, as it told when the ranks met by TCP; nil: they did not
	ident  *Config        // what this rank proves itself by; nil in a Local group
}

func newGroup(rank, size int, timeout time.Duration, log *slog.Logger) *group {
	return &group{rank: rank, size: size, timeout: timeout, warnAfter: warnAfter, log: log, peers: make([]peer, size),
		turn: make(chan struct{}, 1), wake: make(chan struct{}, 1), done: make(chan struct{})}
}

func (g *group) Rank() int { return g.rank }
func (g *group) Size() int { return g.size }

func (g *group) SameHost(rank int) bool {
	if rank < 0 || rank >= g.size {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return rank == g.rank || g.peers[rank].bootID != "" && g.peers[rank].bootID == g.peers[g.rank].bootID
}

// Machines is how many machines the ranks run on: how many boot ids there are. Containers and network namespaces of one
// machine count once. 0: a rank's is not known.
func Machines(g Group) int {
	x, ok := g.(*group)
	if !ok {
		panic(errNotOurs)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	ids := map[string]bool{}
	for i := range x.peers {
		ids[x.peers[i].bootID] = true
	}
	if ids[""] {
		return 0
	}
	return len(ids)
}

func (g *group) CanPassFDs(rank int) bool {
	if rank < 0 || rank >= g.size {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return rank == g.rank || g.peers[rank].unix
}

func (g *group) Close() error {
	g.end(true, "")
	return nil
}

// end closes the group once; a second caller waits until the first is through.
func (g *group) end(goodbye bool, reason string) {
	g.once.Do(func() {
		g.mu.Lock()
		g.closed = true
		g.notes.stop()
		close(g.done)
		g.mu.Unlock()
		g.tr.end(goodbye, reason)
		g.mu.Lock()
		defer g.mu.Unlock()
		for i := range g.peers {
			g.peers[i].discard(^uint64(0))
		}
	})
}

func (g *group) poke() {
	select {
	case g.wake <- struct{}{}:
	default: // a token is there already; who takes it looks at everything
	}
}

// bound gives ctx the group's timeout if it has no deadline.
func bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

func (g *group) AllGather(ctx context.Context, name string, mine Blob) ([]Blob, error) {
	ctx, cancel := bound(ctx, g.timeout)
	defer cancel()
	if err := g.takeTurn(ctx); err != nil {
		return nil, fmt.Errorf("bootstrap: rank %d: all-gather %q: %w", g.rank, name, err)
	}
	defer func() { <-g.turn }()

	g.mu.Lock()
	seq := g.seq
	if g.closed {
		g.mu.Unlock()
		return nil, fmt.Errorf("bootstrap: rank %d: all-gather %d %q: %w", g.rank, seq, name, ErrClosed)
	}
	g.seq++
	g.mu.Unlock()

	out, err := g.round(ctx, seq, name, mine)
	if err != nil {
		g.endRound(seq)
		return nil, fmt.Errorf("bootstrap: rank %d: all-gather %d %q: %w", g.rank, seq, name, err)
	}
	return out, nil
}

func (g *group) takeTurn(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}: // first, so that a call with an ended context still counts, and tells the others
		return nil
	default:
	}
	select {
	case g.turn <- struct{}{}:
		return nil
	case <-g.done:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("not begun, waited for another one of this rank: %w", context.Cause(ctx))
	}
}

// refuse says why mine cannot be contributed, nil if it can.
func refuse(ctx context.Context, name string, mine Blob) error {
	switch {
	case len(name) > MaxName:
		return fmt.Errorf("name has %d bytes, accepted is at most %d", len(name), MaxName)
	case len(mine.Bytes) > MaxBytes:
		return fmt.Errorf("blob has %d bytes, accepted is at most %d", len(mine.Bytes), MaxBytes)
	case len(mine.FDs) > MaxFDs:
		return fmt.Errorf("blob has %d descriptors, accepted is at most %d", len(mine.FDs), MaxFDs)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return nil
}

func (g *group) round(ctx context.Context, seq uint64, name string, mine Blob) ([]Blob, error) {
	if err := refuse(ctx, name, mine); err != nil {
		// The others are told, or they would wait for this rank until their deadline.
		g.tr.contribute(seq, name[:min(len(name), MaxName)], Blob{}, err.Error())
		return nil, err
	}
	if err := g.futile(seq, name, mine); err != nil {
		return nil, err
	}
	if err := g.tr.contribute(seq, name, mine, ""); err != nil {
		return nil, err
	}
	var out []Blob
	err := g.await(ctx, name, func() (missing []int, err error) {
		out, missing, err = g.look(seq, name, mine)
		return missing, err
	})
	return out, err
}

// await looks, whenever something changed, until nothing is missing.
func (g *group) await(ctx context.Context, name string, look func() (missing []int, err error)) error {
	start := time.Now()
	warn := time.NewTimer(g.warnAfter)
	defer warn.Stop()
	for {
		missing, err := look()
		if err != nil || len(missing) == 0 {
			return err
		}
		select {
		case <-g.wake:
		case <-g.done:
			return ErrClosed
		case <-ctx.Done():
			if missing, err = look(); err != nil || len(missing) == 0 {
				return err // it came in the same moment
			}
			return &TimeoutError{Missing: missing, Size: g.size, Waited: time.Since(start), Err: context.Cause(ctx)}
		case <-warn.C:
			g.log.Warn("bootstrap: all-gather waits", "rank", g.rank, "name", name, "for", ranks(missing), "since", span(time.Since(start)))
		}
	}
}

// look ends the round if it can: with everyone's blobs, or with the error that explains most. A rank of another name
// comes first: that it then left, or was ended, is only what followed.
func (g *group) look(seq uint64, name string, mine Blob) (out []Blob, missing []int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, nil, ErrClosed
	}
	var failed, lost, ahead, departed error
	for r := range g.peers {
		p := &g.peers[r]
		if r == g.rank || p.out {
			continue
		}
		if p.lost != nil && lost == nil {
			lost = &PeerLostError{Rank: r, Cause: p.lost}
		}
		switch c := p.at(seq); {
		case c != nil && c.name != name:
			return nil, nil, &NameError{Seq: seq, Rank: g.rank, Name: name, Peer: r, PeerName: c.name}
		case c != nil && c.err != nil && failed == nil:
			failed = c.err
		case c == nil && p.next > seq && ahead == nil:
			ahead = &RemoteError{Rank: r, Text: "it has gone on with the survivors"}
		case c == nil && p.departed != nil && departed == nil:
			departed = p.departed
		case c == nil && !p.gone():
			missing = append(missing, r)
		}
	}
	for _, err := range []error{failed, lost, ahead, departed} {
		if err != nil {
			return nil, nil, err
		}
	}
	if len(missing) > 0 {
		return nil, missing, nil
	}
	out = make([]Blob, g.size)
	out[g.rank] = mine
	for r := range g.peers {
		if r != g.rank && !g.peers[r].out {
			out[r] = g.peers[r].pop()
		}
	}
	g.floor = seq + 1
	return out, nil, nil
}

// futile is why a round cannot succeed on any rank, because of one that is gone; nothing is sent for it then, so that a
// rank which calls again and again does not run away from one that is slow. All agree on who is lost. A rank that left may
// have contributed to a few rounds more on its way to others, and those wait for us.
func (g *group) futile(seq uint64, name string, mine Blob) error {
	g.mu.Lock()
	gone := slices.ContainsFunc(g.peers, func(p peer) bool {
		return !p.out && (p.lost != nil || p.departed != nil && seq >= p.next+maxLeftBehind)
	})
	g.mu.Unlock()
	if !gone {
		return nil
	}
	_, _, err := g.look(seq, name, mine)
	if errors.As(err, new(*PeerLostError)) || errors.As(err, new(*DepartedError)) {
		return err
	}
	return nil
}

// endRound gives up on a round: what came for it, and what will, is dropped.
func (g *group) endRound(seq uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.floor = seq + 1
	for r := range g.peers {
		g.peers[r].discard(g.floor)
	}
}

// at returns the contribution to round seq, nil if none came. Rounds below the floor were removed, so it is the head.
func (p *peer) at(seq uint64) *contribution {
	if len(p.inbox) == 0 || p.inbox[0].seq != seq {
		return nil
	}
	return &p.inbox[0]
}

func (p *peer) pop() Blob {
	b := p.inbox[0].blob
	p.bytes -= len(b.Bytes)
	p.inbox[0] = contribution{}
	p.inbox = p.inbox[1:]
	return b
}

func (p *peer) discard(floor uint64) {
	for len(p.inbox) > 0 && p.inbox[0].seq < floor {
		closeAll(p.pop().FDs)
	}
}

// deliver takes a contribution of rank from, and its descriptors in any case. An error says that the rank broke the
// protocol.
func (g *group) deliver(from int, c contribution) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &g.peers[from]
	if g.closed || p.gone() {
		c.drop()
		return nil
	}
	if c.seq != p.next && !(c.seq > p.next && c.seq%roundsPerAgreement == 0) {
		c.drop()
		return fmt.Errorf("contributed to all-gather %d, the next is %d", c.seq, p.next)
	}
	p.next = c.seq + 1
	if c.seq < g.floor {
		c.drop() // late: that round has ended here
		return nil
	}
	if len(p.inbox) >= maxAheadFrames || p.bytes+len(c.blob.Bytes) > maxAheadBytes {
		c.drop()
		return fmt.Errorf("is %d all-gathers (%d bytes) ahead, accepted is at most %d (%d bytes)", len(p.inbox), p.bytes, maxAheadFrames, maxAheadBytes)
	}
	p.inbox = append(p.inbox, c)
	p.bytes += len(c.blob.Bytes)
	g.poke()
	return nil
}

// setLost and setDeparted note the end of a rank once; whichever comes first stands.
func (g *group) setLost(rank int, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.markLost(rank, cause)
}

func (g *group) markLost(rank int, cause error) {
	p := &g.peers[rank]
	if g.closed || p.gone() {
		return
	}
	p.lost = cause // its inbox stays: a wrong name in it explains more than the loss
	g.notes.lost(&g.mu, rank, cause)
	g.poke()
}

func (g *group) setDeparted(rank int, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.markDeparted(rank, reason)
}

func (g *group) markDeparted(rank int, reason string) {
	p := &g.peers[rank]
	if g.closed || p.gone() {
		return
	}
	p.departed = &DepartedError{Rank: rank, Reason: reason}
	g.notes.departed(&g.mu, rank)
	g.poke()
}

func (g *group) Departed() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []int
	for r := range g.peers {
		if g.peers[r].departed != nil {
			out = append(out, r)
		}
	}
	return out
}

func (g *group) Gone(rank int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return rank >= 0 && rank < g.size && (g.peers[rank].gone() || g.closed && rank != g.rank)
}

func (g *group) OnLost(f func(rank int, cause error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.notes.onLost = append(g.notes.onLost, f)
	for r := range g.peers {
		if cause := g.peers[r].lost; cause != nil {
			g.notes.add(&g.mu, func() { f(r, cause) })
		}
	}
}

func (g *group) OnDeparted(f func(rank int)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.notes.onDeparted = append(g.notes.onDeparted, f)
	for r := range g.peers {
		if g.peers[r].departed != nil {
			g.notes.add(&g.mu, func() { f(r) })
		}
	}
}

var errNotOurs = errors.New("group was made by another package")

// Kill ends a group as kill -9 ends a process: no goodbye, the other ranks see it lost (with ErrKilled in a Local
// group). Its own calls return ErrClosed; Close may follow. It is meant for tests of upper layers, in place of a process
// that dies, and panics on a Group that is not of this package.
func Kill(g Group) {
	k, ok := g.(*group)
	if !ok {
		panic(errNotOurs)
	}
	k.end(false, "")
}
