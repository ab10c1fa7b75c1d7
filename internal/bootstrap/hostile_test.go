// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// rogue joins as rank 1 of 2 by hand, so that a test can send what a proper rank never would.
func rogue(t *testing.T) (Group, *net.UnixConn) {
	cs := configs(2, nil)
	done := make(chan error, 1)
	var g Group
	go func() {
		var err error
		g, err = Join(t.Context(), cs[0])
		done <- err
	}()
	conn := dialRank(t, cs[0])
	h := newHello(&cs[1], 0)
	if _, code, err := dialShake(conn, &h, cs[1].Token); err != nil || code != codeAccept {
		t.Fatal(code, err)
	}
	sendFrame(t, conn, frame{kind: kindData, seq: 0, name: joinName, payload: []byte("id")}, nil)
	if _, err := readFrame(conn); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return g, conn
}

func sendFrame(t *testing.T, conn *net.UnixConn, f frame, fds []int) {
	t.Helper()
	b, err := appendFrame(nil, &f)
	if err != nil {
		t.Fatal(err)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = encodeRights(fds)
	}
	if _, _, err := conn.WriteMsgUnix(b, oob, nil); err != nil && !errors.Is(err, syscall.EPIPE) {
		t.Fatal(err)
	}
}

// What a proven rank sends is not believed either: it is lost, with a cause that says why, and no descriptor stays.
func TestBrokenProtocol(t *testing.T) {
	fd := memfd(t, "x")
	defer closeFD(fd)
	two, many := []int{fd, fd}, bytes.Repeat([]byte{1}, 250)
	all := make([]int, len(many))
	for i := range all {
		all[i] = fd
	}
	data := func(seq uint64, fds int) frame { return frame{kind: kindData, seq: seq, name: "x", fds: fds} }
	rights := func(seq uint64, fds int) frame { return frame{kind: kindRights, seq: seq, fds: fds} }
	for want, send := range map[string]func(c *net.UnixConn){
		"magic is":                      func(c *net.UnixConn) { c.Write(bytes.Repeat([]byte{0xa5}, 64)) },
		"ended without goodbye":         func(c *net.UnixConn) { c.Write([]byte("DBF1")); c.Close() },
		"the next is 1":                 func(c *net.UnixConn) { sendFrame(t, c, data(7, 0), nil) },
		"has 1 descriptors, 0 came":     func(c *net.UnixConn) { sendFrame(t, c, data(1, 1), nil) },
		"no descriptors announced":      func(c *net.UnixConn) { sendFrame(t, c, data(1, 0), two) },
		"1 descriptors announced, 2":    func(c *net.UnixConn) { sendFrame(t, c, rights(1, 1), two) },
		"2 descriptors announced, 0":    func(c *net.UnixConn) { sendFrame(t, c, rights(1, 2), nil) },
		"for all-gather 2 behind 2 for": func(c *net.UnixConn) { sendFrame(t, c, rights(1, 2), two); sendFrame(t, c, rights(2, 2), two) },
		"has 3 descriptors, 2 came":     func(c *net.UnixConn) { sendFrame(t, c, rights(1, 2), two); sendFrame(t, c, data(1, 3), nil) },
		"came with one frame": func(c *net.UnixConn) {
			b, _ := appendFrame(nil, &frame{kind: kindData, seq: 1, payload: make([]byte, 100)})
			for i := range 3 {
				c.WriteMsgUnix(b[i*40:(i+1)*40], encodeRights(two), nil)
			}
		},
		"250 descriptors for all-gather 1 behind 1000": func(c *net.UnixConn) {
			for range 5 {
				sendFrame(t, c, rights(1, 250), all)
			}
		},
	} {
		t.Run(strings.ReplaceAll(want, " ", "_"), func(t *testing.T) {
			checkLeaks(t)
			g, conn := rogue(t)
			defer conn.Close()
			defer g.Close()
			lost := make(chan error, 1)
			g.OnLost(func(_ int, cause error) { lost <- cause })
			send(conn)
			select {
			case err := <-lost:
				if !strings.Contains(err.Error(), want) {
					t.Errorf("lost: %v, want %q", err, want)
				}
			case <-time.After(testBound):
				t.Error("not noticed")
			}
		})
	}
}

// Descriptors for rounds that nobody takes part in are closed with the group.
func TestUntakenDescriptors(t *testing.T) {
	checkLeaks(t)
	g, conn := rogue(t)
	defer conn.Close()
	fd := memfd(t, "x")
	defer closeFD(fd)
	for seq := uint64(1); seq < 10; seq++ {
		sendFrame(t, conn, frame{kind: kindRights, seq: seq, fds: 1}, []int{fd})
		sendFrame(t, conn, frame{kind: kindData, seq: seq, name: "x", fds: 1}, nil)
	}
	gone := make(chan int, 1)
	g.OnDeparted(func(r int) { gone <- r })
	sendFrame(t, conn, frame{kind: kindGoodbye}, nil)
	<-gone
	if all, err := g.AllGather(t.Context(), "x", Blob{}); err != nil || len(all[1].FDs) != 1 {
		t.Errorf("%v, %v", all, err) // it had contributed before it left
	} else {
		closeAll(all[1].FDs)
	}
	if _, err := g.AllGather(t.Context(), "y", Blob{}); err == nil {
		t.Error("wrong name taken")
	}
	g.Close()
}

// A rank at its limit of open files fails that one round, says so, and stays in the group.
func TestOutOfDescriptors(t *testing.T) {
	checkLeaks(t)
	g, conn := rogue(t)
	defer conn.Close()
	defer g.Close()
	fd := memfd(t, "x")
	defer closeFD(fd)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	next, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	closeFD(next)
	tight := old
	tight.Cur = uint64(next + 2)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &tight); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	fds := []int{fd, fd, fd, fd, fd, fd}
	sendFrame(t, conn, frame{kind: kindRights, seq: 1, fds: len(fds)}, fds)
	sendFrame(t, conn, frame{kind: kindData, seq: 1, name: "x", fds: len(fds)}, nil)
	_, err = g.AllGather(t.Context(), "x", Blob{})
	unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	if err == nil || !strings.Contains(err.Error(), "limit of open files") || !strings.Contains(err.Error(), "take 6 descriptors of rank 1") {
		t.Errorf("%v", err)
	}
	sendFrame(t, conn, frame{kind: kindData, seq: 2, name: "y"}, nil)
	if _, err := g.AllGather(t.Context(), "y", Blob{}); err != nil {
		t.Error(err)
	}
}

// A peer that reads nothing holds up neither an all-gather beyond its deadline nor Close beyond its bound, and no other.
func TestStuckPeer(t *testing.T) {
	checkLeaks(t)
	g, conn := rogue(t)
	defer conn.Close()
	big := make([]byte, MaxBytes)
	for seq := uint64(1); seq < 4; seq++ {
		sendFrame(t, conn, frame{kind: kindData, seq: seq, name: "x"}, nil)
		if _, err := g.AllGather(t.Context(), "x", Blob{Bytes: big}); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	g.Close()
	if took := time.Since(start); took > 10*closeBound {
		t.Errorf("close took %v", took)
	}
}

// Descriptors that the kernel does not pass become a failure that the peer hears of, not a silence or a loss.
func TestDescriptorsThatCannotBePassed(t *testing.T) {
	checkLeaks(t)
	g, conn := rogue(t)
	defer conn.Close()
	defer g.Close()
	set := &fdSet{fds: []int{1 << 28}}
	wire, err := appendFrame(nil, &frame{kind: kindData, seq: 1, name: "x", fds: 1})
	if err != nil {
		t.Fatal(err)
	}
	g.(*group).tr.(*mesh).links[1].send(&parcel{seq: 1, name: "x", wire: wire, set: set})
	f, err := readFrame(conn)
	if err != nil || f.kind != kindFail || f.seq != 1 || f.name != "x" || !strings.Contains(string(f.payload), "pass 1 descriptors to rank 1") {
		t.Errorf("%+v %q, %v", f, f.payload, err)
	}
}

// Proven or not, a rank connects only to lower ranks, and once.
func TestOutOfPlace(t *testing.T) {
	checkLeaks(t)
	cs := configs(3, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := Join(ctx, cs[1])
		done <- err
	}()
	for i, want := range []uint8{codeMisplace, codeAccept, codeTaken} {
		conn := dialRank(t, cs[1])
		defer conn.Close()
		h := newHello(&cs[[]int{0, 2, 2}[i]], 1)
		if _, code, err := dialShake(conn, &h, cs[0].Token); err != nil || code != want {
			t.Errorf("attempt %d: verdict %d, %v, want %d", i, code, err, want)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A process of another user is refused whatever it knows.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to take another user id")
	}
	checkLeaks(t)
	cs := configs(2, nil)
	first := make(chan error, 1)
	var g0 Group
	go func() {
		var err error
		g0, err = Join(t.Context(), cs[0])
		first <- err
	}()
	dialRank(t, cs[0]).Close() // it listens
	refused := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its user id
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), 12345, ^uintptr(0)); e != 0 {
			refused <- nil
			return
		}
		conn := dialRank(t, cs[0])
		defer conn.Close()
		h := newHello(&cs[1], 0)
		_, _, err := dialShake(conn, &h, cs[1].Token)
		refused <- err
	}()
	if err := <-refused; err == nil {
		t.Error("another user was accepted")
	}
	g1, err := Join(t.Context(), cs[1])
	if err := errors.Join(err, <-first); err != nil {
		t.Error(err)
	}
	closeGroups([]Group{g0, g1})
}
