// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// dataSocket is a TCP connection from an address of loopback to a listener, both ends.
func dataSocket(t *testing.T, from string) (dialled, accepted net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	dialled, err = d.DialContext(t.Context(), "tcp", ln.Addr().String())
	if err == nil {
		accepted, err = ln.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{dialled, accepted} {
		c.SetDeadline(time.Now().Add(testBound))
		t.Cleanup(func() { c.Close() })
	}
	return dialled, accepted
}

// Without a token a data socket from an address that no rank told is refused before a byte is read, and counted; one line
// says so. A rank's proof counts from its own host alone. With a token, the token decides.
func TestDataDoor(t *testing.T) {
	for _, meet := range []string{"tcp", "unix", "tcp and token"} {
		t.Run(meet, func(t *testing.T) {
			lines := make(chan string, 64)
			edit := func(c *Config) {
				if c.Token, c.Log = nil, tell(lines); meet == "tcp and token" {
					c.Token = []byte("secret")
				}
			}
			cs := configs(2, edit)
			if meet != "unix" {
				cs = tcpConfigs(t, 2, func(c *Config) { edit(c); c.bootID = fmt.Sprint(c.Rank) })
			}
			gs := mustJoin(t, cs)
			defer closeGroups(gs)
			drain(lines)
			var auth [2]Auth
			for r := range auth {
				var err error
				if auth[r], err = AuthOf(gs[r]); err != nil {
					t.Fatal(err)
				}
			}
			meeting := func(from string) (int, error, error) {
				d, a := dataSocket(t, from)
				dialled := make(chan error, 1)
				go func() { dialled <- auth[1].Dial(d, 0) }()
				rank, err := auth[0].Answer(a)
				a.Close()
				return rank, err, <-dialled
			}
			if rank, err, derr := meeting("127.0.0.1"); rank != 1 || err != nil || derr != nil || auth[0].Refused() != 0 {
				t.Fatalf("rank %d, %v, %v, refused %d", rank, err, derr, auth[0].Refused())
			}
			for range 3 {
				_, err, derr := meeting("127.0.0.2")
				if meet == "tcp and token" {
					if err != nil || derr != nil {
						t.Errorf("%v, %v", err, derr)
					}
				} else if err == nil || derr == nil || !strings.Contains(err.Error(), "127.0.0.2 is not a host of this job") {
					t.Errorf("a stranger: %v, %v", err, derr)
				}
			}
			if meet == "tcp and token" {
				return
			}
			// The stranger who says nothing is not waited for.
			_, a := dataSocket(t, "127.0.0.2")
			if _, err := auth[0].Answer(a); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a silent stranger: %v", err)
			}
			if l := drain(lines); auth[0].Refused() != 4 || strings.Count(l, "\n") != 1 || !strings.Contains(l, "127.0.0.2") || !strings.Contains(l, "counted only") {
				t.Errorf("refused %d, logged %q", auth[0].Refused(), l)
			}
			// Another rank's host is not this rank's.
			auth[0].door.hosts[1] = nil
			if _, err, derr := meeting("127.0.0.1"); err == nil || derr == nil || !strings.Contains(err.Error(), "is not its host") || auth[0].Refused() != 5 {
				t.Errorf("%v, %v, refused %d", err, derr, auth[0].Refused())
			}
		})
	}
}
