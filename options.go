// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/launchenv"
	"github.com/doorbell-net/doorbell/internal/netif"
	"github.com/doorbell-net/doorbell/internal/proxy"
	"github.com/doorbell-net/doorbell/netplugin"
)

// Options of a communicator. The zero value takes everything from the environment (DOORBELL_* variables), and what is
// not there from the defaults.
type Options struct {
	// Net is the network plugin: auto (shm where each rank's memory reaches each, else tcp), shm, tcp, or another that is
	// registered; fault+NAME misbehaves, in programs that import netplugin/fault.
	Net string
	// Backend drives the network: proxy, a thread of the host for kernels; gdaki, kernels themselves, by a NIC that they write
	// WQEs for: DOORBELL_NIC, or a real one that all ranks have, or softnic, an emulated one over Net; auto, gdaki where all
	// ranks have a real NIC and Net is auto, else proxy. All ranks have the same. Empty takes the first that is set of
	// DOORBELL_GIN_BACKEND, and NCCL's names for it, NCCL_GIN_TYPE (2 is proxy, 3 gdaki) and NCCL_GIN_BACKEND.
	Backend string
	// Device runs the kernels: auto or soft, goroutines; cuda, an NVIDIA GPU.
	Device string
	// LocalGPUs is how many GPUs the ranks of Local are dealt to, neighbours to the same one; they have to reach each other's
	// memory where ranks store into it. 0: what DOORBELL_LOCAL_GPUS says, else 1.
	LocalGPUs int
	// Progress is who drives the proxy: auto, thread (a polling thread of this process) or assisted (whoever waits).
	Progress string
	// RanksPerNode cuts the machine into virtual nodes of so many ranks: LSA inside, network between. 0: not cut.
	RanksPerNode int
	// Timeout is the deadline of each wait, of host and device, that has none of its own. 0: 100 s.
	Timeout time.Duration
	// TrafficClass is what the network marks its packets with: DSCP and ECN as in the IP header, 0 to 255. 0: what
	// DOORBELL_TRAFFIC_CLASS says, else no mark. A network that sends packets and cannot mark them refuses it.
	TrafficClass int
	// Inject makes one thing go wrong on rank 0, to see whether it is noticed: bitflip, lostput or doublesignal. It
	// needs a network wrapped by fault.
	Inject string
	// Faults is what a network wrapped by fault does wrong, on all ranks: "seed=7,reorder,delay=20" (see netplugin/fault).
	Faults string
	// Log is told of what cannot be an error of a call. nil: slog.Default().
	Log *slog.Logger

	// Who this process is. Open only; Size 0 takes it from the environment.
	Rank, Size int
	LocalSize  int    // ranks on this host, 0 if not known
	LocalRank  int    // this one's number among them: it takes the GPU of that number, modulo their count; -1: as those that came are counted
	Addr       string // where ranks meet: HOST:PORT, file:/PATH on storage that all hosts share, unix:@NAME or unix:/PATH
	Job        string // keeps apart jobs that share an address
	Token      []byte // secret of the job

	backend    env.Chosen        // Backend, and who says so
	nic        string            // provider of the NIC that kernels drive, empty for whichever
	launcher   string            // who started this process, in its own words
	interfaces []netif.Interface // that peers may be reached by; nil for all
	addresses  []netip.Addr      // of those
	lanes      int               // most interfaces to use together to reach one peer
}

// maxRanks bounds what a communicator's tables are made for.
const maxRanks = 4096

// fill takes from the environment what is not set.
func (o *Options) fill(lookup env.Lookup) error {
	err := take(lookup, env.Net, &o.Net)
	err = cmp.Or(err, o.fillBackend(lookup))
	if env.NIC.IsSet(lookup) {
		err = cmp.Or(err, take(lookup, env.NIC, &o.nic))
	}
	err = cmp.Or(err, take(lookup, env.Device, &o.Device))
	err = cmp.Or(err, take(lookup, env.LocalGPUs, &o.LocalGPUs))
	err = cmp.Or(err, take(lookup, env.Progress, &o.Progress))
	err = cmp.Or(err, take(lookup, env.Timeout, &o.Timeout))
	err = cmp.Or(err, take(lookup, env.TCPLanes, &o.lanes))
	err = cmp.Or(err, take(lookup, env.TrafficClass, &o.TrafficClass))
	if env.Faults.IsSet(lookup) {
		err = cmp.Or(err, take(lookup, env.Faults, &o.Faults))
	}
	if env.RanksPerNode.IsSet(lookup) {
		err = cmp.Or(err, take(lookup, env.RanksPerNode, &o.RanksPerNode))
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if err == nil && env.Interfaces.IsSet(lookup) {
		err = o.fillAddresses(lookup)
	}
	return err
}

// fillBackend finds who drives the network, and who says so.
func (o *Options) fillBackend(lookup env.Lookup) (err error) {
	if o.backend = (env.Chosen{Value: o.Backend, By: "Options.Backend"}); o.Backend == "" {
		o.backend, err = env.GINBackend(lookup)
		o.Backend = o.backend.Value
	}
	return err
}

// fillAddresses keeps the addresses of the interfaces that the user named.
func (o *Options) fillAddresses(lookup env.Lookup) error {
	filter, err := env.Interfaces.Get(lookup)
	if err != nil {
		return err
	}
	all, err := netif.List()
	if err == nil {
		o.interfaces, err = netif.Select(all, filter)
	}
	if err == nil {
		o.addresses, err = netif.Choose(all, filter)
	}
	if err != nil {
		return fmt.Errorf("open: %s=%s: %w", env.Interfaces.Name(), filter, err)
	}
	return nil
}

// fillRank takes from the environment who this process is.
func (o *Options) fillRank(lookup env.Lookup) error {
	if o.Size != 0 {
		return nil
	}
	l, err := launchenv.Detect(lookup)
	if errors.Is(err, launchenv.ErrNone) {
		return fmt.Errorf("open: %w; or start the program by \"doorbell run -n N -- PROGRAM\", or set Options.Rank and Size", err)
	}
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	o.Rank, o.Size, o.LocalSize, o.LocalRank = l.Rank, l.Size, max(o.LocalSize, l.LocalSize), l.LocalRank
	o.Addr, o.Job = cmp.Or(o.Addr, l.Addr), cmp.Or(o.Job, l.Job)
	if l.Launcher != launchenv.Doorbell { // of our own there is no doubt
		o.launcher = l.String()
	}
	if err == nil && o.Token == nil {
		o.Token, err = token(lookup)
	}
	return err
}

func token(lookup env.Lookup) ([]byte, error) {
	if env.Token.IsSet(lookup) {
		s, err := env.Token.Get(lookup)
		return []byte(s), err
	}
	if !env.TokenFile.IsSet(lookup) {
		must, err := env.RequireToken.Get(lookup)
		if err == nil && must {
			err = fmt.Errorf("open: no token, and %s is set: give one by %s or %s", env.RequireToken.Name(), env.TokenFile.Name(), env.Token.Name())
		}
		return nil, err
	}
	file, err := env.TokenFile.Get(lookup)
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("open: token file: %w", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("open: token file %s has mode %#o; only its owner may read it: 0600", file, st.Mode().Perm())
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("open: token file: %w", err)
	}
	return []byte(strings.TrimSpace(string(b))), nil
}

// check refuses what no communicator can be.
func (o *Options) check() error {
	switch {
	case o.Size < 1 || o.Size > maxRanks:
		return fmt.Errorf("open: %d ranks asked for, 1 to %d are accepted", o.Size, maxRanks)
	case o.Rank < 0 || o.Rank >= o.Size:
		return fmt.Errorf("open: rank %d of %d ranks, 0 to %d is accepted", o.Rank, o.Size, o.Size-1)
	case o.LocalSize < 0 || o.LocalRank < -1:
		return fmt.Errorf("open: local rank %d of %d ranks of this host, -1 or more of 0 or more are accepted", o.LocalRank, o.LocalSize)
	case o.RanksPerNode < 0 || o.RanksPerNode > 0 && o.Size%o.RanksPerNode != 0:
		return fmt.Errorf("open: %d ranks per node asked for; a divisor of the %d ranks is accepted", o.RanksPerNode, o.Size)
	case o.Timeout <= 0:
		return fmt.Errorf("open: timeout %v, more than 0 is accepted", o.Timeout)
	}
	switch o.Backend {
	case "auto", "proxy", "gdaki":
	default:
		return fmt.Errorf("open: backend %q, auto, proxy and gdaki are accepted", o.Backend)
	}
	switch o.Device {
	case "auto", "soft", "cuda":
	default:
		return fmt.Errorf("open: device %q, auto, soft and cuda are accepted", o.Device)
	}
	switch o.Inject {
	case "", netplugin.InjectBitFlip, netplugin.InjectLostPut, netplugin.InjectDoubleSignal:
	default:
		return fmt.Errorf("open: inject %q, %s, %s and %s are accepted", o.Inject, netplugin.InjectBitFlip, netplugin.InjectLostPut, netplugin.InjectDoubleSignal)
	}
	if o.Faults != "" && !strings.Contains(o.Net, "+") {
		return fmt.Errorf("open: faults %q on network %s: a network that is wrapped is accepted, such as fault+%s", o.Faults, o.Net, o.Net)
	}
	_, err := proxy.ParseMode(o.Progress)
	return err
}

// take sets *to from the environment or the default if it has its zero value.
func take[T comparable](lookup env.Lookup, v env.Var[T], to *T) error {
	var zero T
	if *to != zero {
		return nil
	}
	x, err := v.Get(lookup)
	if err == nil {
		*to = x
	}
	return err
}
