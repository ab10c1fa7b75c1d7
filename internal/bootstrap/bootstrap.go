// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/doorbell-net/doorbell/internal/netif"
)

// Limits of one contribution and of one job. What exceeds them is refused on every rank, never cut.
const (
	MaxBytes = 16 << 20 // bytes of one Blob
	MaxFDs   = 1024     // descriptors of one Blob
	MaxName  = 255      // bytes of an all-gather's name
	MaxRanks = 1 << 16  // ranks of one job
)

// DefaultTimeout bounds a Join or an AllGather whose context has no deadline and whose Config names none.
const DefaultTimeout = 100 * time.Second

const (
	// A rank that is in step is at most one all-gather ahead of us. More happens only after timeouts, so these bound the
	// memory that a rank which does not read (or a peer that floods) can take.
	maxAheadFrames = 4096
	maxAheadBytes  = 64 << 20
	maxLeftBehind  = 64 // all-gathers that a rank that left may have contributed to on other ranks and not here

	closeBound     = 500 * time.Millisecond // how long Close tries to hand out goodbyes
	handshakeBound = 3 * time.Second        // how long an accepted stranger may hold a slot
	warnAfter      = 10 * time.Second       // one log line then says who is waited for
	maxText        = 1024                   // bytes of a reason or failure on the wire
)

// Blob is what one rank contributes to an all-gather.
type Blob struct {
	// Bytes, at most MaxBytes. The caller may reuse them as soon as AllGather returns, whatever its result; receivers own
	// their copies. Nil is the same as empty.
	Bytes []byte
	// FDs are descriptors of the contributing rank, at most MaxFDs. They are passed to every other rank for which
	// CanPassFDs holds; the others get the Blob without them. Each receiver owns its copies (close-on-exec) and must
	// close them. The contributor keeps its own and may close them as soon as AllGather returns, whatever its result.
	FDs []int
	// Local is handed on as it is between ranks of one Local group, and is nil when it comes from another rank of a Join
	// group.
	Local any
}

// Group is one rank's membership in a job. All methods may be called from several goroutines.
type Group interface {
	// Rank is this rank's number, 0 to Size-1.
	Rank() int
	// Size is the number of ranks that the job began with.
	Size() int

	// AllGather exchanges blobs: every rank calls with the same name in the same order, and each gets one Blob per rank,
	// indexed by rank. The own entry is mine as given (descriptors not duplicated). No rank returns success before every
	// rank has entered the call.
	//
	// It blocks until all have contributed, at most until ctx ends; a ctx without deadline gets the group's timeout.
	// Calls of several goroutines are served one at a time. On an error no descriptor is handed out, and the call still
	// counts as one of the sequence: ranks stay in step as long as each makes the same calls.
	//
	// Errors: *NameError (a rank calls with another name; every rank gets it), *RemoteError (a rank could not
	// contribute), *PeerLostError, *DepartedError (left before it contributed), *TimeoutError (names the ranks that have
	// not contributed; wraps the context's cause), ErrClosed; or a refusal of mine, which the others get as *RemoteError.
	AllGather(ctx context.Context, name string, mine Blob) ([]Blob, error)

	// Survivors agrees with all ranks that are left on who they are. It returns the same ranks, rising, on each of them,
	// and from then on all-gathers are among those; Blobs of others are empty. What came of all-gathers that some had
	// called before and others not is dropped. One that waits for a rank which is in Survivors fails with *NameError, so
	// that one rank's call brings all others to theirs.
	//
	// Each rank that is left must call it, or die, or leave. It returns when all have, and when OnLost and OnEpoch have
	// told of the losses; so what is registered there does not call it. A rank that dies afterwards was one of them: the
	// next AllGather fails, and Survivors may be called again.
	//
	// It is bounded as AllGather is. Errors: *TimeoutError (names the ranks that live and have not called), an error that
	// wraps ErrCutOff, ErrClosed. After a timeout this rank still counts as one that called; its next call returns what the
	// others agreed on meanwhile.
	Survivors(ctx context.Context) ([]int, error)

	// Expel has the ranks agree that one of them is lost, though it may live; one rank's word is enough, and all ranks see it
	// as any other loss (OnLost). The rank itself stops as one that is cut off. It does not block; Survivors that this rank
	// begins afterwards is without that one. Of a rank that is gone already nothing is done.
	//
	// It needs a majority of the ranks, that one included if it answers; of two ranks either can expel the other while both
	// answer, else only the lower one.
	//
	// Errors: rank is this one or out of range; ErrClosed.
	Expel(rank int, cause error) error

	// OnLost registers f, called once per lost rank: its control socket ended without goodbye, it was silent for longer
	// than Config.Suspect, it broke the protocol, or it was killed by Kill; and the ranks that are left have agreed on
	// it. Where ranks reach each other by TCP only, which shows no more than that the way is gone, a majority has to be
	// left, or the half with the lowest rank: of two ranks the lower one goes on alone, the higher one stops. A rank that is cut off from the majority, or that the others agreed on, stops: to it all others are lost, the
	// cause wraps ErrCutOff. Ranks already lost are reported at once. Calls come one at a time from a goroutine of the
	// group; f may call any method, Close included. No call starts after Close has begun, but one that is running then
	// may outlast it.
	OnLost(f func(rank int, cause error))

	// Epoch counts the member sets that were agreed on: 0 is that of the beginning. All ranks that go on go through the
	// same sequence of epochs and sets.
	Epoch() uint32
	// OnEpoch registers f, called once per epoch, in order, with the ranks (rising) that it lost; before OnLost tells of
	// them, and else as OnLost does. Epochs that have begun already are reported at once.
	OnEpoch(f func(epoch uint32, lost []int))

	// Departed returns, in rising order, the ranks that said goodbye (clean Close).
	Departed() []int
	// Gone says whether a rank is lost or has said goodbye, as soon as this is known: OnLost and OnDeparted are told later. To a
	// rank whose own group has ended each other one is. It does not block, and is false for a rank out of range.
	Gone(rank int) bool
	// OnDeparted registers f, called once per rank that said goodbye, as OnLost does.
	OnDeparted(f func(rank int))

	// SameHost reports whether rank runs under the same kernel: boot ids are equal. Host names play no part. It is true
	// for the own rank and false for a rank out of range or of unknown boot id.
	SameHost(rank int) bool
	// CanPassFDs reports whether descriptors of a Blob reach rank, and its ours: there is a Unix socket to it, or it is of
	// this process. False for ranks of other hosts, and of other network namespaces of this one.
	CanPassFDs(rank int) bool

	// Close says goodbye to all ranks and releases everything: sockets, goroutines, descriptors that nobody took. Pending
	// AllGathers return ErrClosed. It never waits for peers longer than half a second; it is idempotent and returns nil.
	Close() error
}

// Config says which rank of which job to join, and where.
type Config struct {
	Rank, Size int
	// Addr is where ranks meet. On one host: "unix:@name" (abstract sockets: no file) or "unix:/path" (prefix of one
	// socket file per rank, removed at Close); Job and rank are appended. On one or several: "HOST:PORT", also written
	// "tcp:HOST:PORT", where rank 0 listens. An address is bound as it is, "localhost" on both loopback addresses, any
	// other name on all addresses; others look a name up again until the join ends. Or "file:/path", on storage that all
	// hosts share: rank 0 listens at a free port of all addresses, writes them there (mode 0600), and removes the file
	// when all have met; a path is for one job at a time. In these two, pairs of one host use Unix sockets as far as they
	// reach, all others TCP.
	Addr string
	// Interfaces are those whose addresses this rank offers to ranks of other hosts when it listens on all; nil: all
	// that are up. Loopback comes last, link-local addresses are not offered.
	Interfaces []netif.Interface
	// Job separates jobs that share an Addr.
	Job string
	// Token is the job's secret. It proves both ends of each socket and never travels. Empty: where ranks meet by a file,
	// a secret in it takes its place, and the file must be of this user alone. Else rank 0 logs one warning
	// "unauthenticated"; on Unix sockets the check that the peer has our user id stands in any case, on TCP only hosts of
	// the job may connect once they are known.
	Token []byte
	// LayoutHash and Version must be equal on all ranks; ranks that differ refuse each other and name both values.
	LayoutHash uint64
	Version    uint32
	// Timeout bounds Join and each AllGather whose context has no deadline. 0 means DefaultTimeout.
	Timeout time.Duration
	// Suspect is how long a rank may be silent before it is suspected, in time in which this rank itself runs. Ranks send
	// a sign of life every second, or every fifth of Suspect if that is less. 0 means 5 s; should be equal on all ranks.
	Suspect time.Duration
	// RequireToken refuses to join without a Token.
	RequireToken bool
	// Log receives warnings; nil means slog.Default().
	Log *slog.Logger

	handshake time.Duration // tests: instead of handshakeBound
	warnAfter time.Duration // tests: instead of warnAfter
	slowName  time.Duration // tests: instead of slowName
	bootID    string        // tests: instead of the kernel's
	lookup    func(context.Context, string) ([]netip.Addr, error)
}

func (c *Config) check() error {
	switch {
	case c.Size < 1 || c.Size > MaxRanks:
		return fmt.Errorf("bootstrap: rank %d: join: size is %d, accepted is 1 to %d", c.Rank, c.Size, MaxRanks)
	case c.Rank < 0 || c.Rank >= c.Size:
		return fmt.Errorf("bootstrap: rank %d: join: rank is %d, accepted is 0 to %d (size %d)", c.Rank, c.Rank, c.Size-1, c.Size)
	case c.Timeout < 0:
		return fmt.Errorf("bootstrap: rank %d: join: timeout is %v, accepted is 0 (default %v) or more", c.Rank, c.Timeout, DefaultTimeout)
	case c.Suspect < 0 || c.Suspect > 0 && c.Suspect < minSuspect:
		return fmt.Errorf("bootstrap: rank %d: join: suspect is %v, accepted is 0 (default %v), or %v or more", c.Rank, c.Suspect, defaultSuspect, minSuspect)
	case c.RequireToken && len(c.Token) == 0:
		return fmt.Errorf("bootstrap: rank %d: join: there is no token, and one is required: accepted is any secret that all ranks of the job have", c.Rank)
	}
	return nil
}

const minSuspect = 100 * time.Millisecond

func (c *Config) setDefaults() {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Suspect == 0 {
		c.Suspect = defaultSuspect
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.handshake == 0 {
		c.handshake = handshakeBound
	}
	if c.warnAfter == 0 {
		c.warnAfter = warnAfter
	}
	if c.slowName == 0 {
		c.slowName = slowName
	}
	if c.lookup == nil {
		c.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if c.bootID == "" {
		c.bootID = bootID()
	}
}
