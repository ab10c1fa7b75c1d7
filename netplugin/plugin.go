// SPDX-License-Identifier: Apache-2.0

// Package netplugin is the contract between Doorbell and a network.
//
// A network moves bytes from this rank's memory into a peer's and raises the peer's signals. It is driven by polling:
// nothing here blocks, sleeps or allocates once endpoints and regions exist. One caller at a time calls an endpoint's
// Post and Poll; Export, Withdraw, Import, Forget and Close come from other goroutines, never at the same time as Post and Poll.
package netplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
)

// Powers is what a network declares about itself. Core supplies what is missing, or refuses at creation.
type Powers struct {
	// Ordered: operations of one (context, peer) take effect at the target in the order in which they were posted. A signal
	// comes after its own payload on every network.
	Ordered bool
	// RemoteCompletion: an operation is reported as done only when its bytes are visible at the target.
	RemoteCompletion bool
	// Mapped: the network writes through this process's mapping of the peer's memory (Key.Map). It reaches only ranks
	// whose memory can be mapped.
	Mapped bool
	// DeviceMemory: windows may be memory that only the device reaches (Key.Dev, Op.Src). Others see host bytes alone.
	DeviceMemory bool
	// MaxBytes is the largest single operation; Core cuts larger ones.
	MaxBytes int
	// Network says whether bytes leave the machine's memory. Results of plugins that have none say "no network".
	Network bool
	// TrafficClass: packets are marked with Config.TrafficClass.
	TrafficClass bool
	// Polled: bytes arrive only when somebody calls Poll, and raise nothing that wakes a sleeper.
	Polled bool
}

// Plugin makes endpoints. Its methods are safe for concurrent use.
type Plugin interface {
	// Name is what --net selects: lower case, no '+'.
	Name() string
	Powers() Powers
	// Open makes the endpoint of one rank.
	Open(Config) (Endpoint, error)
}

// Config is what an endpoint is told about its rank.
type Config struct {
	Rank, Ranks int
	// Epoch is of the member set that the ranks are. What comes from another one is refused.
	Epoch uint32
	// Auth proves who is at the other end of a socket. Networks that connect need it.
	Auth Auth
	// Interfaces are those that peers may be reached by, in order of preference; nil for all.
	Interfaces []netip.Addr
	// Lanes is how many interfaces may be used together to reach one peer; 0: the plugin's default.
	Lanes int
	// TrafficClass is what packets are marked with (RFC 2474 and 3168), 0 to 255. Only a plugin with that power sees one.
	TrafficClass int
	// Timeout is how long a connection that broke may take to be made again.
	Timeout time.Duration
	// Copier opens a queue of copies on this rank's device; nil where the host reaches its memory.
	Copier func() (Copier, error)
	// Log is told what is no error of an operation; nil for nobody.
	Log *slog.Logger
}

// Auth is the mutual proof between ranks of a job, by a secret that never travels.
type Auth interface {
	// Dial proves this rank to a rank that it dialled, and that one to it.
	Dial(conn net.Conn, to int) error
	// Answer does so for whoever dialled, and says which rank that is.
	Answer(conn net.Conn) (from int, err error)
}

// Connector is an endpoint that has to meet its peers before the first Import.
type Connector interface {
	// Address is where peers find this endpoint.
	Address() []byte
	// Connect meets all peers by their addresses, indexed by rank. It returns when all are met, or by ctx.
	Connect(ctx context.Context, addrs [][]byte) error
	// Lose says that a peer is lost: what is on its way to it ends with an error that wraps ErrPeerLost. As Forget, it
	// comes at no time with Post or Poll.
	Lose(peer int)
	// Moved says whether the last Poll moved bytes, of either direction: who waits for some looks at once.
	Moved() bool
}

// Noticer is a Connector that notices the end of a peer also while nothing is on its way there. Who waits for what a peer is to send
// back asks it.
type Noticer interface {
	// Ended is why nothing more goes to a peer by a context, or comes from it, as the error of an operation says it; nil while
	// something may. It comes at no time with Post or Poll.
	Ended(peer int, context int32) error
}

// Copier queues copies and stores that a device's copy engines do in order, beside its kernels and waiting for none. One
// caller at a time uses it. An error is the device's: nothing more comes of it.
type Copier interface {
	// Copy copies between memory of the device and pinned memory of the host, in either direction, or between memory of this
	// device and one that Reach was called for.
	Copy(dst, src gpu.Ptr[byte], bytes int) error
	// Copies queues several such copies, which may be done at once and in any order: none writes what another reads or writes.
	// The slices are as long as each other, no copy is of 0 bytes, and all are the caller's again when it returns. One call
	// costs less than as many of Copy, and the copies do not wait for each other.
	Copies(dst, src []gpu.Ptr[byte], bytes []uint64) error
	// Through copies within the device, by way of two pieces of Pinned memory at via, of so many bytes each: one is filled while the
	// other is emptied. All calls name the same memory. ahead says that it may begin before what was queued before is done: it
	// reads nothing that this writes, and since the last call that did not say so, nothing else uses the pieces.
	Through(dst, src gpu.Ptr[byte], bytes int, via gpu.Ptr[byte], piece int, ahead bool) error
	// Reach prepares for copies between this device and memory of another one, bytes long, before they have to wait for no
	// kernel: it queues one from there, which nobody looks at.
	Reach(far gpu.Ptr[byte], bytes int) error
	// Store stores an aligned word when all that was queued before is visible.
	Store(at gpu.Ptr[uint64], value uint64) error
	// StoreBoth is two Stores, at less cost.
	StoreBoth(first gpu.Ptr[uint64], value uint64, second gpu.Ptr[uint64], then uint64) error
	// Pinned takes zeroed memory of the host that both the device and the host reach at the same address; free gives it back.
	Pinned(bytes int) (mem []byte, free func() error, err error)
	// Close waits for what is queued.
	Close() error
}

// DeviceExporter is a NIC that kernels drive, or an endpoint of a network that has DeviceMemory and maps no peer's memory.
type DeviceExporter interface {
	// ExportDevice is Export of memory that only the device reaches.
	ExportDevice(at gpu.Ptr[byte], bytes int) ([]byte, error)
}

// Key is what a peer learned about a region: what the owner's endpoint exported, and the mapping if there is one.
type Key struct {
	Bytes []byte        // the owner's Export
	Map   []byte        // this process's mapping of the whole region, nil if it has none
	Dev   gpu.Ptr[byte] // the region's address on the device, nil if it is none's
	Size  int           // bytes of the region
	// Elsewhere: Dev is memory of another device than this rank's. Copies between the two are copy engines' work; one within
	// a device may be a kernel's, which waits for room among kernels that run.
	Elsewhere bool
}

// Region names memory to Post. The zero Region is none.
type Region int32

// Registrar knows memory of this rank and of its peers by names that travel.
type Registrar interface {
	// Export describes memory of this rank to its peers. signals says that the region holds signal words.
	Export(mem []byte, signals bool) ([]byte, error)
	// Withdraw ends the peers' use of what Export described: from here on its operations are refused.
	Withdraw(export []byte)
	// Import makes a peer's region usable by Post. An error says what of the key is wrong.
	Import(peer int, k Key) (Region, error)
	// Forget ends the use of a region. Operations on it that are on their way may still complete.
	Forget(Region)
}

// Endpoint is one rank's end of a network.
type Endpoint interface {
	Registrar
	// Post takes operations in order and returns how many it took: fewer than offered means "again", later, with the
	// rest. Of each that it took it sets State and, when that is Failed, Err. Done ones need no Poll.
	//
	// It takes nothing after one that failed. When an operation fails later, no later one of the same (context, peer)
	// takes effect on an Ordered network: a signal would cover what never came. Those that another one may have overtaken
	// already end as they do.
	Post(ops []Op) int
	// Poll reports operations that ended since, at most len(done) of them, in any order.
	Poll(done []Completion) int
	// Close ends the endpoint.
	Close() error
}

// Kind is what an operation does.
type Kind uint8

// Kinds.
const (
	Put    Kind = 1 + iota // store Data at (Dst, DstOff), then raise the signal, if there is one
	Signal                 // raise the signal only
	Get                    // read len(Data) bytes at (Dst, DstOff) into Data
)

// State is how far an operation is.
type State uint8

// States.
const (
	Posted State = iota // on its way: Poll reports its end
	Done                // locally complete: Data may be reused; a Get's Data is there
	Failed              // see Err; it raised no signal
)

// Op is an operation. The caller owns it, and Data until the operation is done.
type Op struct {
	Kind    Kind
	State   State
	Strong  bool  // the signal covers all earlier operations of (Context, Peer)
	Raise   bool  // there is a signal
	Context int32 // of the endpoint: any number from 0
	Peer    int32 // rank of the world
	Dst     Region
	DstOff  uint64
	Data    []byte
	// Where a network has DeviceMemory and the device's memory is not the host's: Src is the device's address of Data, nil of
	// bytes that lie in no window; of bytes that only the device reaches, Data is nil and Bytes is their number.
	Src    gpu.Ptr[byte]
	Bytes  int
	SigDst Region // holds the signal's word
	SigOff uint64 // of an aligned 8-byte word
	SigAdd uint64
	Token  uint64 // comes back in the Completion
	Err    error
}

// Len is how many bytes the operation moves.
func (o *Op) Len() int {
	if o.Data != nil {
		return len(o.Data)
	}
	return o.Bytes
}

// Completion is the end of an operation that Post had left Posted.
type Completion struct {
	Token uint64
	Err   error // nil: Done
}

// ErrBounds is what the error of an operation wraps when it reaches past its region.
var ErrBounds = errors.New("out of bounds")

// ErrPeerLost is what the error of an operation wraps when its peer cannot be reached any more.
var ErrPeerLost = errors.New("peer lost")

// InBounds says whether n bytes at off lie in size bytes, without overflow.
func InBounds(off, n, size uint64) bool { return n <= size && off <= size-n }

// Wrapper makes another plugin of one: fault one that misbehaves, staged one that carries device memory. Its name stands in
// front: --net fault+shm.
type Wrapper interface {
	Name() string
	// Wrap returns the plugin made of p. The error says what is accepted; of faults, it lists those that there are.
	Wrap(p Plugin, f Faults) (Plugin, error)
}

// Cutter is an endpoint whose links can be broken from outside, below what makes them reliable.
type Cutter interface {
	// Cut breaks the links to a peer as a network does, without a word to either end. Nothing is lost by it. As Forget, it
	// comes at no time with Post or Poll.
	Cut(peer int)
}

// Duplicator is an endpoint that can send frames twice, below what makes them arrive once.
type Duplicator interface {
	// Duplicate asks again, during Post and Poll, which frames to send twice. It comes before Connect.
	Duplicate(again func() bool)
}

// Faults is what a wrapped network is to do wrong. The zero value is nothing.
type Faults struct {
	// Text says it in the wrapper's words, for all ranks: see package fault.
	Text string
	// Inject is one fault, on the first operation that fits: InjectBitFlip, InjectLostPut or InjectDoubleSignal.
	Inject string
	// Rank is the rank that it happens on.
	Rank int
}

// Faults that a benchmark must notice.
const (
	InjectBitFlip      = "bitflip"      // one bit of one payload is wrong
	InjectLostPut      = "lostput"      // one payload does not arrive, its signal does
	InjectDoubleSignal = "doublesignal" // one signal is added twice
)

var (
	mu       sync.RWMutex
	plugins  = map[string]Plugin{}
	wrappers = map[string]Wrapper{}
)

// RegisterWrapper makes a wrapper known by its name. It panics when the name is taken, or is none of a plugin (Plugin.Name).
func RegisterWrapper(w Wrapper) { register("wrapper", wrappers, w.Name(), w) }

// Register makes a plugin known by its name; package init functions call it. It panics when the name is taken, or is none
// (Plugin.Name).
func Register(p Plugin) { register("plugin", plugins, p.Name(), p) }

func register[V any](what string, known map[string]V, name string, v V) {
	if name == "" || name != strings.ToLower(name) || strings.Contains(name, "+") {
		panic(fmt.Sprintf("netplugin: a %s is named %q: lower case without + is accepted", what, name))
	}
	mu.Lock()
	defer mu.Unlock()
	if _, taken := known[name]; taken {
		panic(fmt.Sprintf("netplugin: two %ss are named %q", what, name))
	}
	known[name] = v
}

// Lookup finds a plugin by its name, "shm", or with wrappers in front of it, "fault+shm". The error lists those that
// are there.
func Lookup(name string, f Faults) (Plugin, error) {
	mu.RLock()
	defer mu.RUnlock()
	parts := strings.Split(name, "+")
	p, ok := plugins[parts[len(parts)-1]]
	if !ok {
		return nil, fmt.Errorf("network %q is not there; there are %s", parts[len(parts)-1], names(plugins))
	}
	for _, w := range slices.Backward(parts[:len(parts)-1]) {
		wrap, ok := wrappers[w]
		if !ok {
			return nil, fmt.Errorf("network %q: wrapper %q is not there; there are %s", name, w, names(wrappers))
		}
		var err error
		if p, err = wrap.Wrap(p, f); err != nil {
			return nil, fmt.Errorf("network %q: %w", name, err)
		}
	}
	return p, nil
}

func names[V any](m map[string]V) string {
	if len(m) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}
