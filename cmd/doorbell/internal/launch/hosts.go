// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/doorbell-net/doorbell/internal/env"
)

// share is the number of ranks that this host starts.
func (o *Options) share() int { return o.N / max(o.Nodes, 1) }

// first is the first of them.
func (o *Options) first() int { return o.NodeRank * o.share() }

// checkHosts refuses what hosts could not agree upon.
func (o *Options) checkHosts() error {
	switch {
	case o.Nodes < 0:
		return fmt.Errorf("%d nodes asked for, at least 1 is needed", o.Nodes)
	case o.NodeRank < 0 || o.NodeRank >= max(o.Nodes, 1):
		return fmt.Errorf("node rank %d of %d nodes, 0 to %d is accepted", o.NodeRank, max(o.Nodes, 1), max(o.Nodes, 1)-1)
	case o.Nodes > 1 && o.N%o.Nodes != 0:
		return fmt.Errorf("%d ranks are no multiple of %d nodes", o.N, o.Nodes)
	case o.Nodes > 1:
		return CheckRendezvous(o.Rendezvous)
	}
	return nil
}

// filePrefix begins a rendezvous by a file.
const filePrefix = "file:"

// CheckRendezvous refuses what is no HOST:PORT and no file:/path. Names are not looked up, nor the storage: that is for
// the ranks, who say how long it took.
func CheckRendezvous(s string) error {
	const accepted = "accepted is HOST:PORT with a port from 1 to 65535, as node7:4711 or [fd00::7]:4711, or file:/path on storage that all hosts share; the same on all hosts"
	if path, ok := strings.CutPrefix(s, filePrefix); ok {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == filepath.Dir(path) || strings.ContainsFunc(path, unicode.IsControl) {
			return fmt.Errorf("rendezvous %q: %s", s, accepted)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("rendezvous %q: %s", s, accepted)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || host == "" || strings.ContainsAny(host, "/@ ") {
		return fmt.Errorf("rendezvous %q: %s", s, accepted)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("rendezvous %q: other hosts cannot connect to it: %s", s, accepted)
	}
	return nil
}

// jobName is what all hosts come to without talking: from the port, or the file's name, and the token, which they share.
// The rendezvous' host is left out, since one may say a name and another an address of the same. Two jobs of one token and
// one port are told apart by Job only; at the same host the second finds the port taken.
func (o *Options) jobName(token []byte) (string, error) {
	place, byFile := strings.CutPrefix(o.Rendezvous, filePrefix)
	if byFile {
		place = filePrefix + filepath.Base(place) // hosts may mount the storage at different folders
	} else {
		var err error
		if _, place, err = net.SplitHostPort(o.Rendezvous); err != nil {
			return "", err
		}
	}
	mac := hmac.New(sha256.New, token)
	fmt.Fprintf(mac, "doorbell job\x00%s", place)
	return hex.EncodeToString(mac.Sum(nil)[:8]), nil
}

// SharedJob is the id of a job of several hosts, as Run gives it to ranks: Job, or what port and token make. It reads the
// token, and its error says what is wrong with it.
func (o *Options) SharedJob() (string, error) {
	token, err := o.secret(os.Environ())
	if err != nil || o.Job != "" {
		return o.Job, err
	}
	return o.jobName(token)
}

const howToken = "make one with \"(umask 077; head -c 32 /dev/urandom | base64 > FILE)\" and copy it to each host"

// secret is the token that all hosts have.
func (o *Options) secret(base []string) ([]byte, error) {
	file := o.TokenFile
	if file == "" {
		if t := o.value(base, env.Token.Name()); t != "" {
			return []byte(t), nil
		}
		file = o.value(base, env.TokenFile.Name())
	}
	if file == "" {
		return nil, errors.New("several hosts need a token file; " + howToken)
	}
	return ReadToken(file)
}

// maxToken bounds a token file, in bytes, so that a wrong name costs no memory.
const maxToken = 64 << 10

// ReadToken reads a token file as ranks do, and refuses one that others may read, or that holds nothing.
func ReadToken(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("token file: %w; %s", err, howToken)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	switch {
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("token file %s is no regular file", file)
	case st.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("token file %s has mode %#o; only its owner may read it: chmod 600 %s", file, st.Mode().Perm(), file)
	case st.Size() > maxToken:
		return nil, fmt.Errorf("token file %s has %d bytes, at most %d are accepted", file, st.Size(), maxToken)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return nil, fmt.Errorf("token file %s is empty; %s", file, howToken)
	}
	return []byte(token), nil
}
