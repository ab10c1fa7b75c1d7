// SPDX-License-Identifier: Apache-2.0

//go:build linux

package tcp

import (
	"bytes"
	"net"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestIO sends pieces of any shape through a pair of sockets, by each way of sending, and compares what comes.
func TestIO(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(fds[0])
	defer closeFD(fds[1])
	buf := make([]byte, 64<<10)
	if n, err := recvSmall(fds[1], buf); err != unix.EAGAIN {
		t.Fatalf("nothing was sent, and %d bytes came, %v", n, err)
	}
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 300), 1, vecs+10).Draw(t, "pieces")
		want := bytes.Join(pieces[:min(len(pieces), vecs)], nil)
		send := func() (int, error) { return writev(fds[0], pieces) }
		if rapid.Bool().Draw(t, "one piece") {
			send = func() (int, error) { return sendSmall(fds[0], want) }
		}
		n, err := send()
		if err != nil || n != len(want) {
			t.Fatalf("sent %d of %d bytes, %v", n, len(want), err)
		}
		got := 0
		for got < len(want) {
			n, err := recvSmall(fds[1], buf[got:])
			if err != nil {
				t.Fatalf("received %d of %d bytes, %v", got, len(want), err)
			}
			got += n
		}
		if !bytes.Equal(buf[:got], want) {
			t.Fatalf("received %x, want %x", buf[:got], want)
		}
	})
	if err := unix.Shutdown(fds[1], unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	if _, err := sendSmall(fds[0], []byte{1}); err != unix.EPIPE {
		t.Errorf("send to a closed end: %v, want %v and no signal", err, unix.EPIPE)
	}
}

func TestSameHost(t *testing.T) {
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	for _, c := range []struct {
		local, remote string
		same          bool
	}{
		{"127.0.0.1", "127.0.0.2", true}, {"10.0.0.1", "10.0.0.1", true}, {"10.0.0.1", "10.0.0.2", false}, {"::1", "::1", true},
		{"fe80::1", "fe80::2", false}, {"::ffff:10.0.0.1", "10.0.0.1", true}, {"127.0.0.1", "10.0.0.1", false},
	} {
		if got := sameHost(at(c.local), at(c.remote)); got != c.same {
			t.Errorf("%s to %s: same host %v, want %v", c.local, c.remote, got, c.same)
		}
	}
}
