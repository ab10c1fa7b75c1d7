// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package tcp

import "golang.org/x/sys/unix"

func recvSmall(fd int, b []byte) (int, error) { return recv(fd, b) }

func sendSmall(fd int, b []byte) (int, error) {
	n, err := unix.Write(fd, b)
	if err == unix.EINTR {
		err = unix.EAGAIN
	}
	return n, err
}

func writev(fd int, pieces [][]byte) (int, error) { return sendSmall(fd, pieces[0]) }
