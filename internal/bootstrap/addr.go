// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// address is where the ranks of one job listen: base, a digest of the job's name, the rank.
type address struct{ base string }

const maxSunPath = 107 // bytes of a socket's name, its final zero not counted

func parseAddr(addr, job string, size int) (address, error) {
	const accepted = acceptedAddrs
	name, ok := strings.CutPrefix(addr, "unix:")
	switch {
	case !ok || len(name) < 2 || name[0] != '@' && name[0] != '/' || strings.ContainsRune(name, 0):
		return address{}, fmt.Errorf("address is %q, %s", addr, accepted)
	case name[0] == '@' && !haveAbstract:
		return address{}, fmt.Errorf("address is %q: no abstract sockets on this system, %s", addr, accepted)
	}
	digest := sha256.Sum256([]byte(job))
	a := address{base: name + "." + hex.EncodeToString(digest[:6]) + "."}
	if n := len(a.of(size - 1)); n > maxSunPath {
		return address{}, fmt.Errorf("address is %q: makes socket names of %d bytes, accepted is at most %d", addr, n, maxSunPath)
	}
	return a, nil
}

func (a address) of(rank int) string { return a.base + strconv.Itoa(rank) }

var errBusy = errors.New("directory is locked by another process")

// listen binds name. EADDRINUSE means that a living process has it. A socket file whose process has ended is replaced;
// probing, removing and binding happen under a lock of the directory, so that no rank removes what another just made.
func listen(ctx context.Context, name string) (*net.UnixListener, error) {
	addr := &net.UnixAddr{Name: name, Net: "unix"}
	if name[0] == '@' {
		return net.ListenUnix("unix", addr)
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	switch got, err := tryLock(dir); {
	case err != nil:
		return nil, fmt.Errorf("lock directory %s: %w", dir.Name(), err)
	case !got:
		return nil, errBusy
	}
	ln, err := net.ListenUnix("unix", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		c, derr := dialUnix(ctx, name)
		if derr == nil {
			c.Close()
			return nil, err
		}
		if !errors.Is(derr, syscall.ECONNREFUSED) {
			return nil, err
		}
		if rerr := os.Remove(name); rerr != nil {
			return nil, rerr
		}
		ln, err = net.ListenUnix("unix", addr)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(name, 0o600); err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

func dialUnix(ctx context.Context, name string) (*net.UnixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", name)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// notYet reports whether a failed dial means that nobody listens there, or that its queue is full, for now.
func notYet(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.ENOENT, syscall.EAGAIN, syscall.ECONNRESET, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	// The dialer's own deadline, which may come a moment before its context ends.
	return outOfTime(err)
}

// outOfTime reports whether a deadline passed, be it a socket's or, which is another error, that of a dial.
func outOfTime(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}
