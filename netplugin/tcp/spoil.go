// SPDX-License-Identifier: Apache-2.0

package tcp

import "golang.org/x/sys/unix"

// Duplicate has frames sent twice, for package fault. The second one has the number of the first, and so has no effect.
func (e *endpoint) Duplicate(again func() bool) { e.repeat = again }

// Cut breaks the sockets to a peer, for package fault: both ends find that out by themselves, and make new ones.
func (e *endpoint) Cut(peer int) {
	if peer < 0 || peer >= len(e.links) {
		return
	}
	for _, l := range e.links[peer] {
		if l.fd >= 0 {
			_ = unix.Shutdown(l.fd, unix.SHUT_RDWR) // one that broke before is as good
		}
	}
}
