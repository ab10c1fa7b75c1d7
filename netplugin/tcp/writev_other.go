// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package tcp

import "golang.org/x/sys/unix"

func writev(fd int, pieces [][]byte) (int, error) {
	n, err := unix.Write(fd, pieces[0])
	if err == unix.EINTR {
		err = unix.EAGAIN
	}
	return n, err
}
