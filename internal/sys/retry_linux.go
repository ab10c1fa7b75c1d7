// SPDX-License-Identifier: Apache-2.0

package sys

import "golang.org/x/sys/unix"

// RetrySoon asks a TCP socket to send again what was not answered every second at least, and the first times every 200 ms
// or so. By itself the kernel doubles the time: 3 s after a link went away it looks again 3 s later, and a link that came
// back stays silent for so long. They are wishes: an old kernel has neither.
func RetrySoon(fd int) {
	const tcpRTOMaxMs = 44 // TCP_RTO_MAX_MS of linux/tcp.h, from 6.15 on; 1,000 is the least
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMaxMs, 1000)
}
