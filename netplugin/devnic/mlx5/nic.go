// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
)

// provider makes hardware NICs.
type provider struct {
	load func() (verbs, error)
}

// Name is "mlx5".
func (provider) Name() string { return "mlx5" }

// Untried is devnic.Untried's: none of this has run on hardware.
func (provider) Untried() {}

// Probe says what this machine lacks: a library, a NIC, or of each NIC what it cannot.
func (p provider) Probe() error {
	v, err := p.load()
	if err == nil {
		_, err = usable(v)
	}
	if err != nil {
		return fmt.Errorf("mlx5: %w", err)
	}
	return nil
}

// nic is one rank's NIC. All of it belongs to whoever calls its methods, one at a time.
type nic struct {
	*adapter
	config devnic.Config
	pd     handle
	pdn    uint32
	uar    uint32 // the page of doorbell registers
	eqn    uint32
	bell   gpu.Ptr[uint64]
	line   string // about the port

	own   map[uint32]handle // registered memory by its key
	pairs map[uint32]*pair  // by number
	order []*pair           // for Poll
	next  int               // whose turn it is
	errs  []error           // of calls that return none
}

// Open opens a NIC for a rank.
func (p provider) Open(c devnic.Config) (devnic.NIC, error) {
	n, err := p.open(c)
	if err != nil {
		return nil, fmt.Errorf("open mlx5 on rank %d: %w", c.Rank, err)
	}
	return n, nil
}

func (p provider) open(c devnic.Config) (_ *nic, err error) {
	switch {
	case c.Ranks < 1 || c.Rank < 0 || c.Rank >= c.Ranks:
		return nil, fmt.Errorf("rank %d of %d ranks; 0 to ranks-1 is accepted", c.Rank, c.Ranks)
	case c.MapRegisters == nil || c.DMABuf == nil || c.Failed == nil:
		return nil, errors.New("how kernels reach registers, how device memory is named, and whom to tell of failures must be given")
	case c.TrafficClass < 0 || c.TrafficClass > 255:
		return nil, fmt.Errorf("traffic class %d; 0 to 255 are accepted", c.TrafficClass)
	}
	v, err := p.load()
	if err != nil {
		return nil, err
	}
	names, err := usable(v)
	if err != nil {
		return nil, err
	}
	a, err := openAdapter(v, names[c.Rank%len(names)])
	if err != nil {
		return nil, err
	}
	n := &nic{adapter: a, config: c, line: a.about(uint8(c.TrafficClass)), own: map[uint32]handle{}, pairs: map[uint32]*pair{}}
	if err := n.prepare(); err != nil {
		return nil, fmt.Errorf("NIC %s: %w", a.name, errors.Join(err, a.ends.run()))
	}
	return n, nil
}

// prepare makes what all queue pairs share.
func (n *nic) prepare() (err error) {
	if n.pd, n.pdn, err = n.allocPD(n.context); err != nil {
		return err
	}
	n.ends.add(func() error { return n.freePD(n.pd) })
	if n.eqn, err = n.queryEQ(n.context); err != nil {
		return err
	}
	r, err := n.allocUAR(n.context)
	if err != nil {
		return err
	}
	n.uar = r.page
	n.ends.add(func() error {
		n.freeUAR(r.uar)
		return nil
	})
	// Both buffers of the register, of the page's upper half: a store to the first rings.
	at, free, err := n.config.MapRegisters(ffi.Bytes(r.bell, min(max(8, 1<<n.caps.logRegisters), pageBytes/2)))
	if err != nil {
		return err
	}
	n.ends.add(free)
	n.bell = gpu.Cast[uint64](at)
	return nil
}

// Facts are those of the NIC.
func (n *nic) Facts() devnic.Facts {
	return devnic.Facts{MaxMessage: n.caps.maxMessage(), MaxDepth: n.caps.maxDepth(), About: n.line, FarQueues: true}
}

// note keeps an error for Close.
func (n *nic) note(err error) {
	if err != nil {
		n.errs = append(n.errs, err)
	}
}

// Close ends queue pairs and registrations that are left, then the NIC. Its error has those of all that could not be ended.
func (n *nic) Close() error {
	for _, q := range n.order {
		n.note(q.ends.run())
	}
	for _, mr := range n.own {
		n.note(n.deregMR(mr))
	}
	n.note(n.ends.run())
	err := errors.Join(n.errs...)
	n.order, n.errs = nil, nil
	clear(n.pairs)
	clear(n.own)
	if err != nil {
		err = fmt.Errorf("close mlx5 on rank %d: %w", n.config.Rank, err)
	}
	return err
}
