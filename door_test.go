// SPDX-License-Identifier: Apache-2.0

//go:build linux

package doorbell_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
)

// listening is the TCP ports at which this process listens on all addresses.
func listening(t *testing.T) (ports []int) {
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	mine := map[string]bool{}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			mine[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		b, _ := os.ReadFile(table) // a machine without IPv6 has one only
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" || !mine[f[9]] {
				continue
			}
			if _, hex, ok := strings.Cut(f[1], ":"); ok && strings.Trim(f[1][:len(f[1])-5], "0") == "" {
				if p, err := strconv.ParseUint(hex, 16, 16); err == nil {
					ports = append(ports, int(p))
				}
			}
		}
	}
	return ports
}

// A job without a token is open to its hosts alone, at every port that its ranks listen at: an address that no rank told
// is dropped before it can say a word, with one line in the log, and the job goes on.
func TestStrangersWithoutToken(t *testing.T) {
	before := map[int]bool{}
	for _, p := range listening(t) {
		before[p] = true
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var mu sync.Mutex
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return said.Write(b)
	}), nil))
	cs, errs := make([]*doorbell.Comm, 2), make([]error, 2)
	both := func(f func(r int)) {
		var wg sync.WaitGroup
		for r := range cs {
			wg.Go(func() { f(r) })
		}
		wg.Wait()
	}
	both(func(r int) {
		cs[r], errs[r] = doorbell.Open(ctx, doorbell.Options{Rank: r, Size: 2, Addr: fmt.Sprintf("unix:@doorbell-door-%d", os.Getpid()), Job: "door", Net: "tcp", Log: log})
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	doors := 0
	for _, p := range listening(t) {
		if before[p] {
			continue
		}
		doors++
		for range 2 {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
			conn, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", p))
			if err != nil {
				t.Fatal(err)
			}
			deadline, _ := ctx.Deadline()
			conn.SetDeadline(deadline)
			if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("port %d: read %d, %v", p, n, err)
			}
			conn.Close()
		}
	}
	if doors != 2 {
		t.Errorf("2 ranks listen at %d ports", doors)
	}
	both(func(r int) { errs[r] = errors.Join(cs[r].Barrier(ctx), cs[r].Close()) })
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if n := strings.Count(said.String(), "127.0.0.2 is not a host of this job"); n != 2 { // one for each rank
		t.Errorf("%d lines say so:\n%s", n, said.String())
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
