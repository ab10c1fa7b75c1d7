// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/doorbell-net/doorbell/internal/netif"
)

// meetingPoint is where rank 0 listens for the others.
type meetingPoint struct {
	host string // a name or an address
	port uint16
	file string // instead of these two: rank 0 writes there where it listens
}

func (p *meetingPoint) String() string {
	if p.file != "" {
		return "file:" + p.file
	}
	return net.JoinHostPort(p.host, strconv.Itoa(int(p.port)))
}

const acceptedAddrs = `accepted is "HOST:PORT", "tcp:HOST:PORT", "file:/path" (on storage that all hosts share), "unix:@name" (linux) or "unix:/path"`

// parseMeeting reads "HOST:PORT", with "tcp:" or without.
func parseMeeting(addr string) (*meetingPoint, error) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(addr, "tcp:"))
	if err != nil || host == "" || strings.ContainsAny(host, "/ \x00") {
		return nil, fmt.Errorf("address is %q, %s", addr, acceptedAddrs)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return nil, fmt.Errorf("address is %q: port is %q, accepted is 1 to 65535", addr, port)
	}
	return &meetingPoint{host: host, port: uint16(n)}, nil
}

// listenMeeting binds rank 0's listeners. An address is bound as it is, so that nothing else of the host is open; what a
// name stands for differs from host to host (its own name is often a loopback address), so a name binds all addresses.
func listenMeeting(p *meetingPoint) (lns []net.Listener, all bool, err error) {
	port := strconv.Itoa(int(p.port))
	if p.host == "localhost" {
		ln, err := net.Listen("tcp4", "127.0.0.1:"+port)
		if err == nil {
			lns = append(lns, ln)
		}
		ln6, err6 := net.Listen("tcp6", "[::1]:"+port)
		if err6 == nil {
			lns = append(lns, ln6)
		}
		if len(lns) == 0 || errors.Is(err, syscall.EADDRINUSE) || errors.Is(err6, syscall.EADDRINUSE) {
			closeListeners(lns)
			return nil, false, errors.Join(err, err6)
		}
		return lns, false, nil
	}
	where := ":" + port
	if _, err := netip.ParseAddr(p.host); err == nil {
		where = p.String()
	}
	if p.file != "" {
		where = ":0"
	}
	ln, err := net.Listen("tcp", where)
	if err != nil {
		return nil, false, err
	}
	return []net.Listener{ln}, where[0] == ':', nil
}

func closeListeners(lns []net.Listener) {
	for _, ln := range lns {
		ln.Close()
	}
}

// open makes the listeners of a rank that meets by TCP, and its card.
func (j *joiner) open(ctx context.Context) error {
	offer := j.c.Interfaces
	local, err := netif.List()
	if err != nil && offer == nil {
		return fmt.Errorf("bootstrap: rank %d: join: %w", j.c.Rank, err)
	}
	if offer == nil {
		offer = local
	}
	me := card{bootID: j.c.bootID, addrs: netif.Addresses(offer), others: netif.Addresses(local)}
	if j.c.Interfaces != nil && len(me.addrs) == 0 {
		var names []string
		for _, i := range j.c.Interfaces {
			names = append(names, i.Name)
		}
		return fmt.Errorf("bootstrap: rank %d: join: interfaces %q offer no address, accepted is one that is up and has an address that is not link-local", j.c.Rank, names)
	}
	all := true
	if j.c.Rank == 0 {
		if j.lns, all, err = listenMeeting(j.point); err != nil && j.point.file != "" {
			return j.noPort(err)
		} else if err != nil {
			return j.cannotListen(ctx, err)
		}
	} else {
		ln, err := net.Listen("tcp", ":0")
		if err != nil {
			return j.noPort(err)
		}
		j.lns = append(j.lns, ln)
	}
	at := j.lns[0].Addr().(*net.TCPAddr).AddrPort()
	me.port = at.Port()
	if !all { // only there
		me.others = append(me.others, me.addrs...)
		me.addrs = nil
		for _, ln := range j.lns {
			me.addrs = append(me.addrs, ln.Addr().(*net.TCPAddr).AddrPort().Addr())
		}
	}
	if haveAbstract {
		var b [8]byte
		rand.Read(b[:]) // never fails: the runtime ends the process instead
		name := "@doorbell." + hex.EncodeToString(b[:]) + "." + strconv.Itoa(j.c.Rank)
		if ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"}); err == nil {
			j.lns, me.unix = append(j.lns, ln), name
		} else {
			j.c.Log.Debug("bootstrap: no Unix socket", "rank", j.c.Rank, "err", err)
		}
	}
	me.trim()
	j.me = me
	if j.point.file != "" && j.c.Rank == 0 {
		return j.publish(ctx)
	}
	return nil
}

// noPort says why this rank cannot have any port that is free.
func (j *joiner) noPort(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: no port is free of those that the kernel gives out (sysctl net.ipv4.ip_local_port_range): widen that range, or end what uses it", err)
	}
	return fmt.Errorf("bootstrap: rank %d: join: listen: %w", j.c.Rank, err)
}

// cannotListen says why rank 0 cannot have its port, after a look at who has it.
func (j *joiner) cannotListen(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("bootstrap: rank 0: join: listen at %s: not an address of this host, and rank 0 listens there: %w", j.point, err)
	case !errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("bootstrap: rank 0: join: listen at %s: %w", j.point, err)
	}
	ctx, cancel := context.WithTimeout(ctx, min(j.c.handshake, time.Second))
	defer cancel()
	var d net.Dialer
	if conn, derr := d.DialContext(ctx, "tcp", j.point.String()); derr == nil {
		defer conn.Close()
		deadline, _ := ctx.Deadline()
		conn.SetDeadline(deadline)
		me := j.ident.Load()
		mine := newHello(me, 0)
		if peer, code, serr := dialShake(conn, &mine, me.Token); serr == nil {
			return &RankTakenError{Rank: 0, Addr: j.c.Addr, PID: getpid(), Other: int(peer.pid), Joined: code == codeJoined}
		}
	}
	return fmt.Errorf("bootstrap: rank 0: join: listen at %s: port %d is taken by another process: %w", j.point, j.point.port, err)
}

// mayCome reports whether a host may connect. A token keeps strangers out wherever they come from; without one, only the
// job's hosts may, once they are known.
func (j *joiner) mayCome(from net.Addr) bool {
	if len(j.ident.Load().Token) > 0 {
		return true
	}
	a, ok := from.(*net.TCPAddr)
	if !ok {
		return true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.hosts == nil || j.hosts[a.AddrPort().Addr().Unmap().WithZone("")]
}
