// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/doorbell-net/doorbell/internal/netif"
)

// door keeps strangers from the data sockets of a job that has no token: only its hosts may come in, and each rank from
// its own host alone.
type door struct {
	rank    int
	hosts   [][]netip.Addr // by rank
	all     map[netip.Addr]bool
	refused atomic.Uint64
	log     *slog.Logger
}

// newDoor takes the addresses that ranks told when they met by TCP. Where they met by Unix sockets they share a host, and
// come from its own addresses.
func newDoor(g *group) (*door, error) {
	g.mu.Lock()
	d := &door{rank: g.rank, hosts: g.hosts, all: map[netip.Addr]bool{}, log: g.log}
	g.mu.Unlock()
	if d.hosts == nil {
		all, err := netif.List()
		if err != nil {
			return nil, fmt.Errorf("bootstrap: rank %d: who may connect: %w", g.rank, err)
		}
		d.hosts = slices.Repeat([][]netip.Addr{netif.Addresses(all)}, g.size)
	}
	for _, h := range d.hosts {
		for _, a := range h {
			d.all[a] = true
		}
	}
	return d, nil
}

// admit refuses who comes from no host of the job or, with a rank, not from that rank's host. A nil door lets all in.
func (d *door) admit(conn net.Conn, rank int) error {
	if d == nil {
		return nil
	}
	from := conn.RemoteAddr()
	t, ok := from.(*net.TCPAddr)
	if !ok {
		return nil
	}
	a := t.AddrPort().Addr().Unmap().WithZone("")
	var err error
	switch {
	case rank < 0 && !d.all[a]:
		err = fmt.Errorf("%s is not a host of this job", a)
	case rank >= 0 && (rank >= len(d.hosts) || !slices.Contains(d.hosts[rank], a)):
		err = fmt.Errorf("%s is not the host of rank %d", a, rank)
	default:
		return nil
	}
	if d.refused.Add(1) == 1 { // strangers must not be able to fill our log
		d.log.Warn("bootstrap: refuse data connection; later ones are counted only", "rank", d.rank, "from", from.String(), "err", err)
	}
	return err
}
