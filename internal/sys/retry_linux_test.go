// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRetrySoon reads back what was asked for: a number that is no option of TCP would be refused without a word.
func TestRetrySoon(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		RetrySoon(int(fd))
		if v, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS); err != nil || v != 1 {
			t.Errorf("linear timeouts: %d, %v", v, err)
		}
		if v, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, 44); err == unix.ENOPROTOOPT {
			t.Log("this kernel has no bound of the time between two attempts")
		} else if err != nil || v != 1000 {
			t.Errorf("most time between two attempts: %d ms, %v", v, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
