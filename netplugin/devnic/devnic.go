// SPDX-License-Identifier: Apache-2.0

// Package devnic is the contract between Doorbell and a NIC that kernels drive themselves: they write WQEs into a send queue
// and ring its doorbell, and read CQEs (package wqe has the formats). The host only makes queue pairs and registers memory.
//
// A provider is found by its name and may be of another module. softnic emulates a NIC, so that all else can be proved where
// there is none; what comes of it is marked as emulated.
package devnic

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
)

// Provider makes NICs. Its methods are safe for concurrent use.
type Provider interface {
	// Name is lower case.
	Name() string
	// Open makes the NIC of one rank. The error says what this machine lacks.
	Open(Config) (NIC, error)
}

// Prober is a Provider of real NICs. Such a one is taken without being named where each rank's Probe finds a NIC; a Provider
// without Probe only by its name.
type Prober interface {
	Provider
	// Probe says what this machine lacks for a NIC that kernels drive, nil if Open may be called. It changes nothing, and
	// waits for nobody.
	Probe() error
}

// Untried is a Prober whose NICs no program has used yet: backend auto leaves them alone, and gdaki, or who names them, takes
// them.
type Untried interface {
	Prober
	Untried()
}

// Config is what a NIC is told about its rank.
type Config struct {
	Rank, Ranks int
	// Wire is what an emulated NIC sends by, connected to all peers, and Powers what it can. A real one has no use for it.
	// Nobody else calls its Post and Poll.
	Wire   netplugin.Endpoint
	Powers netplugin.Powers
	// Pinned takes zeroed memory of the host that kernels reach at the same address; free gives it back.
	Pinned func(bytes int) (mem gpu.Ptr[byte], free func() error, err error)
	// MapRegisters lets kernels store to registers of a real NIC that are mapped in this process, and says where they find them.
	MapRegisters func(mem []byte) (at gpu.Ptr[byte], free func() error, err error)
	// DMABuf opens memory of the device as a buffer that a real NIC's driver can map: at is at offset in it. The caller closes it.
	DMABuf func(at gpu.Ptr[byte], bytes int) (buf *os.File, offset uint64, err error)
	// TrafficClass is what a real NIC marks packets with (RFC 2474 and 3168), 0 to 255.
	TrafficClass int
	// Failed is told of a queue pair that ended, once for each. It does not block.
	Failed func(Failure)
}

// Facts is what a NIC says of itself.
type Facts struct {
	Emulated   bool   // it is a program: its figures say so
	MaxMessage uint32 // largest write or read, bytes; kernels cut larger ones
	MaxDepth   int    // of a queue pair
	About      string // of a real one: which device and port, and what was found there, in a line
	FarQueues  bool   // it can read send queues in memory of the device that the host does not see
}

// NIC is one rank's NIC. Nothing of it blocks. One caller at a time calls its methods.
//
// Queue pairs are reliable: each does its WQEs in order. The CQE of a write or a fetch-add comes when what any queue pair does from
// then on is behind its bytes; with an emulated NIC only where its wire has RemoteCompletion.
//
// Of memory, Region is the key that WQEs carry, its bits as a uint32; addresses in WQEs are offsets in the region. That of
// this rank's own memory is its local key too.
type NIC interface {
	netplugin.Registrar
	netplugin.DeviceExporter
	Facts() Facts
	// Create makes a queue pair to a rank; this one's own is accepted.
	Create(QPConfig) (QP, error)
	// Connect joins it to the queue pair of the peer that has that address. Each side connects to the other before either
	// rings a doorbell.
	Connect(number uint32, address []byte) error
	// Idle says whether each WQE that a doorbell told of has its CQE; of a queue pair that was destroyed, whether memory that was
	// imported for it may be given back.
	Idle(number uint32) bool
	// Destroy ends a queue pair. Its memory may be given back.
	Destroy(number uint32)
	// Lose says that a peer is lost: what is on its way to it ends with an error.
	Lose(peer int)
	// Poll does what the host has to do for the NIC, of an emulated one all. It says whether there was something.
	Poll() (worked bool)
	// Quiet says whether Poll has nothing to do until a doorbell rings.
	Quiet() bool
	// Close ends the NIC. Queue pairs that are left end with it.
	Close() error
}

// QPConfig is a queue pair as it is asked for. Its memory is zeroed but for each CQE's tail, which is wqe.EmptyTail, aligned
// to 64 bytes, and stays the caller's.
type QPConfig struct {
	Peer  int             // rank
	Depth int             // WQEs in the send queue and CQEs in the completion queue, a power of two
	Send  gpu.Ptr[uint64] // [Depth] blocks
	Done  gpu.Ptr[uint64] // [Depth] blocks
	// Far says that Send lies in memory of the device that the host does not see, and Config.DMABuf names; only with FarQueues.
	Far bool
	// Record is the doorbell record's word of the send queue: the second of a line, whose other words are the NIC's.
	Record gpu.Ptr[uint32]
	// Ended is for an emulated NIC: a word of zero in memory that was exported for signals and is imported by the peer before
	// it connects; its NIC raises it when it destroys the other end. nil: nobody tells of that.
	Ended gpu.Ptr[uint64]
}

// QP is a queue pair as kernels use it. Each WQE gives one CQE, at the same place in its queue.
type QP struct {
	Number  uint32
	CQ      uint32          // number of its completion queue
	Bell    gpu.Ptr[uint64] // the doorbell register: the first word of the last WQE is stored there, after the record
	Address []byte          // for the peer's Connect
}

// Failure is why a queue pair ended.
type Failure struct {
	QP       uint32
	Peer     int
	Syndrome uint8 // as in the CQE
	PeerGone bool  // the peer did not answer, and did not refuse
	Err      error // says which WQE, and why
}

var (
	mu        sync.RWMutex
	providers = map[string]Provider{}
)

// Register makes a provider known by its name; package init functions call it. It panics when the name is taken.
func Register(p Provider) {
	mu.Lock()
	defer mu.Unlock()
	if _, taken := providers[p.Name()]; taken {
		panic(fmt.Sprintf("devnic: two providers are named %q", p.Name()))
	}
	providers[p.Name()] = p
}

// Providers are all that are known, by name.
func Providers() (all []Provider) {
	mu.RLock()
	defer mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		all = append(all, providers[name])
	}
	return all
}

// Lookup finds a provider by its name. The error lists those that are there.
func Lookup(name string) (Provider, error) {
	mu.RLock()
	defer mu.RUnlock()
	if p, ok := providers[name]; ok {
		return p, nil
	}
	return nil, fmt.Errorf("NIC %q is not there; there are %s", name, strings.Join(slices.Sorted(maps.Keys(providers)), ", "))
}
