// SPDX-License-Identifier: Apache-2.0

package tcp

import "golang.org/x/sys/unix"

func fillIovecs(iov *[vecs]unix.Iovec, pieces [][]byte) int {
	n := min(len(pieces), vecs)
	for i := range n {
		setIovec(&iov[i], pieces[i])
	}
	return n
}

func errOf(e unix.Errno) error {
	switch e {
	case 0:
		return nil
	case unix.EINTR:
		return unix.EAGAIN
	}
	return e
}
