// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// record is what rank 0 writes to a rendezvous file: where it listens, for which job, in which attempt.
type record struct {
	job     [32]byte // of nonce and the job's id, as in a hello
	nonce   [32]byte // of this attempt. Without a token it is the job's secret too: who can read the file belongs to it
	ranks   int
	pid     int    // these three are for messages alone
	host    string // letters, digits, '.', '-', '_'
	written time.Time
	at      []netip.AddrPort
}

const (
	recordHead     = "doorbell rendezvous 1\n"
	maxRecordBytes = 16 << 10
	maxRecordAddrs = 2 * maxCardAddrs
	maxHostName    = 64
)

func newNonce() (n [32]byte) {
	rand.Read(n[:]) // never fails: the runtime ends the process instead
	return n
}

// attemptOf is c as all ranks of one attempt have it: its job is of nobody else's, nor of an earlier run of the same job,
// and where there is no token the nonce takes its place.
func attemptOf(c *Config, nonce [32]byte) *Config {
	out := *c
	out.Job = c.Job + "\x00" + hex.EncodeToString(nonce[:])
	if len(c.Token) == 0 {
		secret := sha256.Sum256(append([]byte("doorbell rendezvous secret\x00"), nonce[:]...))
		out.Token = secret[:]
	}
	return &out
}

// of reports whether the record is of a job with this id.
func (r *record) of(c *Config) bool { return sha256.Sum256([]byte(attemptOf(c, r.nonce).Job)) == r.job }

func (r *record) String() string {
	return fmt.Sprintf("written %s by pid %d on host %s", r.written.Format(time.RFC3339), r.pid, r.host)
}

// encode writes one line for each fact. The last line shows that nothing was cut off.
func (r *record) encode() []byte {
	var b bytes.Buffer
	b.WriteString(recordHead)
	fmt.Fprintf(&b, "job %x\nnonce %x\nranks %d\npid %d\nhost %s\nwritten %s\n", r.job, r.nonce, r.ranks, r.pid, r.host, r.written.UTC().Format(time.RFC3339))
	for _, a := range r.at {
		fmt.Fprintf(&b, "at %s\n", a)
	}
	b.WriteString("end\n")
	return b.Bytes()
}

var (
	errNotRecord = errors.New("no rendezvous file")
	errDamaged   = errors.New("damaged rendezvous file")
)

// decodeRecord accepts exactly what encode makes. The error wraps errNotRecord where the text is something else, and
// errDamaged where it only begins as a record does: cut short, or of another version.
func decodeRecord(b []byte) (*record, error) {
	if !bytes.HasPrefix(b, []byte("doorbell rendezvous ")) {
		return nil, fmt.Errorf("%w: begins with %.30q, accepted is %q", errNotRecord, b, recordHead)
	}
	bad := func(format string, a ...any) (*record, error) {
		return nil, fmt.Errorf("%w: %w", errDamaged, fmt.Errorf(format, a...))
	}
	if len(b) > maxRecordBytes {
		return bad("more than %d bytes", maxRecordBytes)
	}
	text, ok := strings.CutPrefix(string(b), recordHead)
	if !ok {
		return bad("another version: begins with %.30q, accepted is %q", b, recordHead)
	}
	text, ok = strings.CutSuffix(text, "\nend\n")
	if !ok {
		return bad("cut short: the last line is not %q", "end")
	}
	lines := strings.Split(text, "\n")
	r := &record{}
	for i, name := range []string{"job", "nonce", "ranks", "pid", "host", "written"} {
		if i >= len(lines) {
			return bad("no %q", name)
		}
		v, ok := strings.CutPrefix(lines[i], name+" ")
		var err error
		switch {
		case !ok:
			return bad("line %d is %.40q, accepted is %q and its value", i+2, lines[i], name)
		case name == "job":
			err = hex32(&r.job, v)
		case name == "nonce":
			err = hex32(&r.nonce, v)
		case name == "ranks":
			r.ranks, err = strconv.Atoi(v)
		case name == "pid":
			r.pid, err = strconv.Atoi(v)
		case name == "host":
			if r.host = v; hostLabel(v) != v {
				err = errors.New("odd characters")
			}
		case name == "written":
			r.written, err = time.Parse(time.RFC3339, v)
		}
		if err != nil {
			return bad("%s is %.80q: %w", name, v, err)
		}
	}
	for _, l := range lines[6:] {
		v, ok := strings.CutPrefix(l, "at ")
		a, err := netip.ParseAddrPort(v)
		if !ok || err != nil || a.Port() == 0 || len(r.at) >= maxRecordAddrs {
			return bad("%.80q is no address, or one too many", l)
		}
		r.at = append(r.at, a)
	}
	if r.ranks < 1 || r.ranks > MaxRanks || r.pid < 0 || len(r.at) == 0 {
		return bad("%d ranks, pid %d, %d addresses", r.ranks, r.pid, len(r.at))
	}
	if !bytes.Equal(r.encode(), b) {
		return bad("a value is not as it is written")
	}
	return r, nil
}

func hex32(to *[32]byte, s string) error {
	if len(s) != 64 {
		return fmt.Errorf("%d digits, accepted are 64", len(s))
	}
	_, err := hex.Decode(to[:], []byte(s))
	return err
}

// hostLabel keeps of a host's name what is safe in a line of text.
func hostLabel(s string) string {
	s = strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_' {
			return c
		}
		return -1
	}, s)
	if s = s[:min(len(s), maxHostName)]; s == "" {
		return "unknown"
	}
	return s
}
