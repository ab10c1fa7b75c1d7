// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"net"
	"time"

	"github.com/doorbell-net/doorbell/internal/netif"
)

// A way may drop large packets and say nothing, when a link on it takes less than the hosts' own and the messages that
// would tell are filtered: sockets connect, greet, and stand still with the first large frame, until they time out. What
// they held is sent again over the next socket (link.adopt), so it is enough that this one sends small segments only.
// After a socket timed out, the next one of its lane is tried so; where nobody answers even then, the peer is away and
// not the cause.
const smallFor = 5 * time.Second // a dialer whose socket was reset comes back within two keepalives

func (c *connector) isSmall(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.small
}

// large goes back to segments as the network has them.
func (c *connector) large(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.small = false
}

// trySmall has the next socket of a lane send small segments: ours if we dial, else by the listener, whose sockets take
// over its limit.
func (c *connector) trySmall(l *link) {
	if log := c.e.cfg.Log; log != nil {
		log.Warn("tcp: nothing sent was acknowledged; if the peer answers now, large packets are lost on the way, and small ones are sent from now on",
			"rank", c.e.cfg.Rank, "peer", l.peer, "lane", l.lane, "within", c.e.cfg.Timeout, "segment bytes", netif.SmallSegment,
			"advice", "give all links the same MTU, or set net.ipv4.tcp_mtu_probing=1")
	}
	if l.peer < c.e.cfg.Rank {
		c.mu.Lock()
		l.small = true
		c.mu.Unlock()
		return
	}
	raw, err := c.ln.(*net.TCPListener).SyscallConn()
	if err != nil || netif.LimitSegments(raw, netif.SmallSegment) != nil {
		return
	}
	c.wg.Go(func() {
		if pause(c.life, smallFor) {
			_ = netif.LimitSegments(raw, 0) // it may be closed
		}
	})
}
