// SPDX-License-Identifier: Apache-2.0

//go:build unix

package bootstrap

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

var controlBytes = unix.CmsgSpace(4 * (rightsBatch + 3)) // the most that the kernel passes in a message

const controlTruncated = unix.MSG_CTRUNC

func getpid() int { return os.Getpid() }

// ownerOf is the user id that a file belongs to.
func ownerOf(st os.FileInfo) (uid int, ok bool) {
	s, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(s.Uid), true
}

func dupFD(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor %d: %w", fd, err)
	}
	return n, nil
}

func closeFD(fd int) { unix.Close(fd) }

func encodeRights(fds []int) []byte { return unix.UnixRights(fds...) }

// decodeRights returns the descriptors in a control buffer; those of a buffer that cannot be parsed as a whole too.
func decodeRights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("read descriptors: %w", err)
	}
	var fds []int
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return fds, fmt.Errorf("read descriptors: %w", err)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

// tryLock takes an advisory lock of a directory without waiting; false if another process has it. Closing the file
// releases it.
func tryLock(dir *os.File) (bool, error) {
	err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK || err == unix.EINTR {
		return false, nil
	}
	return err == nil, err
}
