// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"time"

	"golang.org/x/sys/unix"
)

// setSilence bounds how long bytes may stay without an answer of the other host: a cable that is out, a router that
// drops large packets, a host that is gone all end in an error.
func setSilence(fd int, d time.Duration) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, max(int(d/time.Second), 1))
}

// setNoControl is for a socket within the host. There is no congestion to control, and a system that uses BBR paces it: 3.5
// GB/s where Reno, which every kernel has and any user may choose, gives 6.6 (iperf3 over loopback, -C bbr and -C reno).
func setNoControl(fd int) {
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
}
