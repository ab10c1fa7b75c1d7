// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Rendezvous by a file on storage that all hosts share. Rank 0 writes where it listens; the others read it, again and
// again, until the rank that it names proves to be rank 0 of this attempt of this job. Nothing is believed for being in
// the file: a record that was left behind names nobody, or somebody whose hello is of another attempt.
//
// Storage such as NFS shows an old state for a while, makes no promise for O_EXCL, and may not answer at all. So a record
// is renamed into place as a whole, told from others by its nonce alone (never by time or inode), looked at again after it
// was written and while ranks gather, and no goroutine that anybody waits for touches the storage itself.

const (
	storageBound = 5 * time.Second // one look at the file
	placePause   = 200 * time.Millisecond
	placeWatch   = time.Second // between rank 0's looks at its record
)

// parsePlace reads "file:/path".
func parsePlace(addr string) (string, error) {
	path := strings.TrimPrefix(addr, "file:")
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == filepath.Dir(path) || strings.ContainsAny(path, "\x00\n") {
		return "", fmt.Errorf("address is %q: accepted is file: and the whole path of a file, on storage that all hosts share", addr)
	}
	return path, nil
}

// onStorage runs f, which may hang as long as the storage does, and waits for it no longer than a bound.
func onStorage[T any](ctx context.Context, what string, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	t := time.NewTimer(storageBound)
	defer t.Stop()
	var zero T
	select {
	case r := <-done:
		return r.v, r.err
	case <-t.C:
		return zero, fmt.Errorf("%s: the storage did not answer for %v", what, storageBound)
	case <-ctx.Done():
		return zero, fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
}

// errPlace is wrapped by what waiting does not mend.
var errPlace = errors.New("rendezvous file")

// readRecord reads the file. fs.ErrNotExist: there is none, or an empty one. trust: the file is the only proof of where
// its text comes from, so it must be of this user, and nobody else's to read or write.
func readRecord(ctx context.Context, path string, trust bool) (*record, error) {
	return onStorage(ctx, "read "+path, func() (*record, error) {
		// Opening the folder makes NFS ask its server whether files came: by itself it may say "no such file" for a minute.
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			return nil, fmt.Errorf("%w %s: folder: %w", errPlace, path, err)
		}
		dir.Readdirnames(1)
		dir.Close()
		st, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESTALE):
			return nil, fs.ErrNotExist
		case err != nil:
			return nil, fmt.Errorf("%w %w", errPlace, err)
		case !st.Mode().IsRegular():
			return nil, fmt.Errorf("%w %s: is no regular file", errPlace, path)
		case st.Size() == 0:
			return nil, fs.ErrNotExist
		}
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, openErr(path, err)
		}
		defer f.Close()
		if st, err = f.Stat(); err == nil && trust {
			err = private(st)
		}
		if err != nil {
			return nil, fmt.Errorf("%w %s: %w", errPlace, path, err)
		}
		b, err := io.ReadAll(io.LimitReader(f, maxRecordBytes+1))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errDamaged, err) // replaced while it was read, on some storage
		}
		r, err := decodeRecord(b)
		if errors.Is(err, errNotRecord) {
			err = fmt.Errorf("%w %s: %w; it is left alone: give another path", errPlace, path, err)
		}
		return r, err
	})
}

func openErr(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE) {
		return fs.ErrNotExist
	}
	return fmt.Errorf("%w %w", errPlace, err)
}

// private refuses a file that says nothing about who wrote it.
func private(st fs.FileInfo) error {
	const how = "without a token the file is the job's secret: accepted is mode 0600 and this user as owner; or give DOORBELL_TOKEN_FILE"
	if m := st.Mode().Perm(); m&0o077 != 0 {
		return fmt.Errorf("has mode %#o; %s", m, how)
	}
	if uid, ok := ownerOf(st); ok && uid != os.Geteuid() {
		return fmt.Errorf("is of user id %d, and this is %d; %s", uid, os.Geteuid(), how)
	}
	return nil
}

// writeRecord puts the record in the file's place, whole: who looks sees the old one or the new one.
func writeRecord(ctx context.Context, path string, r *record) error {
	_, err := onStorage(ctx, "write "+path, func() (struct{}, error) {
		f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
		if err != nil {
			return struct{}{}, err
		}
		_, err = f.Write(r.encode())
		if err == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err == nil {
			err = os.Rename(f.Name(), path)
		}
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errPlace, err)
	}
	return nil
}

// removeRecord takes the record away if it is still that of nonce.
func removeRecord(path string, nonce [32]byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), storageBound)
	defer cancel()
	if r, err := readRecord(ctx, path, false); err != nil || r.nonce != nonce {
		return nil // gone, or another's
	}
	_, err := onStorage(ctx, "remove "+path, func() (struct{}, error) { return struct{}{}, os.Remove(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// listens asks who listens where a record says, without a word that counts: its hello tells whether it is the record's
// writer, and the socket ends before anything is proved. It returns that process's id.
func (r *record) listens(ctx context.Context, c *Config) (pid int, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, min(c.handshake, time.Second))
	defer cancel()
	deadline, _ := ctx.Deadline()
	found := make(chan int, len(r.at))
	for _, a := range r.at {
		go func() {
			found <- func() int {
				conn, err := dialTCP(ctx, a, time.Second)
				if err != nil {
					return -1
				}
				defer conn.Close()
				conn.SetDeadline(deadline)
				h := newHello(c, 0)
				h.job, h.purpose, h.size = r.job, forMeeting, uint32(max(r.ranks, 1))
				h.from = 0
				out := h.encode()
				if _, err := conn.Write(out[:]); err != nil {
					return -1
				}
				if peer, err := readHello(conn); err == nil && peer.job == r.job && peer.from == 0 {
					return int(peer.pid)
				}
				return -1
			}()
		}()
	}
	for range r.at {
		if pid := <-found; pid >= 0 {
			return pid, true
		}
	}
	return 0, false
}

// addrsOf is where a card says that its rank listens.
func (c *card) at() (out []netip.AddrPort) {
	for _, a := range c.addrs {
		out = append(out, netip.AddrPortFrom(a, c.port))
	}
	return out
}

func thisHost() string {
	name, err := os.Hostname()
	if err != nil {
		name = ""
	}
	return hostLabel(name)
}
