// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The handshake proves to both ends that the other has the token, and binds who they say they are to that proof:
//
//	dialer                                   listener
//	hello A                       ->
//	                              <-         hello B
//	proof {0, HMAC("dial", 0, A, B)}    ->   refuses another token with {token, zeros}
//	                              <-         verdict {code, HMAC("answer", code, A, B)}
//
// The dialer proves first, so that a stranger who dials gets nothing to guess at. Nonces make each proof good for one
// socket, the labels keep one end's proof from being played back as the other's. Differences (size, version, layout)
// count only between proven ends, so that a stranger cannot stop a join by claiming one. The format of these messages
// does not change with Config.Version: ranks of different versions can still tell each other so.
const (
	helloBytes = 112
	proofBytes = 40
	helloMagic = "DBELLBS1"
)

// Verdicts of a listener.
const (
	codeAccept   = 0
	codeToken    = 1 // not authenticated: the refused end cannot check it
	codeTaken    = 2 // the rank has another process
	codeJoined   = 3 // the group is complete already
	codeMismatch = 4 // both ends see where from the hellos
	codeMisplace = 5 // this pair of ranks does not connect in this direction
	codeMost     = codeMisplace
)

// What a socket is for. A proof is good for one purpose: it is in both hellos, and in the labels.
const (
	forControl = 0 // a pair's control socket
	forMeeting = 1 // to rank 0, to get the table
	forData    = 2 // a plugin's, see Auth
	forMost    = forData
)

var purposes = [forMost + 1]string{"", "meeting ", "data "}

// hello: 0 magic | 8 version u32 | 12 from u32 | 16 to u32 | 20 size u32 | 24 layout u64 | 32 pid u32 | 36 purpose u32 |
// 40 spare, zero (8) | 48 nonce (32) | 80 SHA-256 of the job (32)
type hello struct {
	version, from, to, size uint32
	layout                  uint64
	pid, purpose            uint32
	nonce, job              [32]byte
}

func newHello(c *Config, to int) hello {
	h := hello{version: c.Version, from: uint32(c.Rank), to: uint32(to), size: uint32(c.Size), layout: c.LayoutHash,
		pid: uint32(getpid()), job: sha256.Sum256([]byte(c.Job))}
	rand.Read(h.nonce[:]) // never fails: the runtime ends the process instead
	return h
}

func (h *hello) encode() [helloBytes]byte {
	var b [helloBytes]byte
	le := binary.LittleEndian
	copy(b[:], helloMagic)
	le.PutUint32(b[8:], h.version)
	le.PutUint32(b[12:], h.from)
	le.PutUint32(b[16:], h.to)
	le.PutUint32(b[20:], h.size)
	le.PutUint64(b[24:], h.layout)
	le.PutUint32(b[32:], h.pid)
	le.PutUint32(b[36:], h.purpose)
	copy(b[48:], h.nonce[:])
	copy(b[80:], h.job[:])
	return b
}

// strangerError says that the other end does not speak this protocol, or not to its end. It disturbs nobody.
type strangerError struct{ err error }

func (e *strangerError) Error() string { return "not a rank: " + e.err.Error() }
func (e *strangerError) Unwrap() error { return e.err }

func stranger(format string, a ...any) error { return &strangerError{fmt.Errorf(format, a...)} }

// readHello reads and checks one hello. The magic is looked at first: whoever speaks another protocol, and waits for an
// answer, is known after 8 bytes.
func readHello(r io.Reader) (hello, error) {
	var b [helloBytes]byte
	if _, err := io.ReadFull(r, b[:8]); err != nil {
		return hello{}, stranger("read hello: %w", err)
	}
	if string(b[:8]) != helloMagic {
		return hello{}, stranger("read hello: begins with %q, accepted is %q", b[:8], helloMagic)
	}
	if _, err := io.ReadFull(r, b[8:]); err != nil {
		return hello{}, stranger("read hello: %w", err)
	}
	return decodeHello(&b)
}

func decodeHello(b *[helloBytes]byte) (hello, error) {
	le := binary.LittleEndian
	h := hello{version: le.Uint32(b[8:]), from: le.Uint32(b[12:]), to: le.Uint32(b[16:]), size: le.Uint32(b[20:]),
		layout: le.Uint64(b[24:]), pid: le.Uint32(b[32:]), purpose: le.Uint32(b[36:])}
	copy(h.nonce[:], b[48:])
	copy(h.job[:], b[80:])
	switch {
	case string(b[:8]) != helloMagic:
		return hello{}, stranger("read hello: begins with %q, accepted is %q", b[:8], helloMagic)
	case le.Uint64(b[40:]) != 0:
		return hello{}, stranger("read hello: reserved words are not zero")
	case h.purpose > forMost:
		return hello{}, stranger("read hello: purpose is %d, accepted is 0 to %d", h.purpose, forMost)
	case h.size < 1 || h.size > MaxRanks || h.from >= h.size || h.to >= MaxRanks:
		return hello{}, stranger("read hello: rank %d of %d to rank %d: out of range", h.from, h.size, h.to)
	}
	return h, nil
}

// proof: 0 code u8 | 1 zero (7) | 8 HMAC (32)
type proof struct {
	code uint8
	mac  [32]byte
}

func (p proof) encode() [proofBytes]byte {
	var b [proofBytes]byte
	b[0] = p.code
	copy(b[8:], p.mac[:])
	return b
}

func readProof(r io.Reader) (proof, error) {
	var b [proofBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return proof{}, stranger("read proof: %w", err)
	}
	p := proof{code: b[0]}
	copy(p.mac[:], b[8:])
	if p.code > codeMost || [7]byte(b[1:8]) != [7]byte{} {
		return proof{}, stranger("read proof: code is %d (then %x), accepted is 0 to %d (then zeros)", p.code, b[1:8], codeMost)
	}
	return p, nil
}

// prove computes the proof of one end; label says which.
func prove(token []byte, label string, code uint8, a, b *hello) proof {
	m := hmac.New(sha256.New, token)
	ea, eb := a.encode(), b.encode()
	m.Write([]byte("doorbell bootstrap " + purposes[a.purpose] + label + "\x00"))
	m.Write([]byte{code})
	m.Write(ea[:])
	m.Write(eb[:])
	p := proof{code: code}
	m.Sum(p.mac[:0])
	return p
}

func (p proof) equal(q proof) bool { return p.code == q.code && hmac.Equal(p.mac[:], q.mac[:]) }

var errNotForUs = errors.New("meant for another job, rank or purpose")

// dialShake is the dialer's half. It returns the proven hello of the other end and its verdict; ErrToken, or a
// strangerError.
func dialShake(rw io.ReadWriter, mine *hello, token []byte) (hello, uint8, error) {
	a := mine.encode()
	if _, err := rw.Write(a[:]); err != nil {
		return hello{}, 0, stranger("write hello: %w", err)
	}
	peer, err := readHello(rw)
	if err != nil {
		return hello{}, 0, err
	}
	if peer.job != mine.job || peer.from != mine.to || peer.to != mine.from || peer.purpose != mine.purpose {
		return hello{}, 0, stranger("read hello: %w", errNotForUs)
	}
	p := prove(token, "dial", 0, mine, &peer).encode()
	if _, err := rw.Write(p[:]); err != nil {
		return hello{}, 0, stranger("write proof: %w", err)
	}
	v, err := readProof(rw)
	if err != nil {
		return hello{}, 0, err
	}
	if v.code == codeToken || !v.equal(prove(token, "answer", v.code, mine, &peer)) {
		return peer, v.code, ErrToken
	}
	return peer, v.code, nil
}

// answerShake is the listener's half; mine has its purpose. judge is asked about the proven hello and returns the verdict to send. The hello is
// returned along with ErrToken too, as a claim that nothing proves.
func answerShake(rw io.ReadWriter, mine hello, token []byte, judge func(hello) uint8) (hello, uint8, error) {
	peer, err := readHello(rw)
	if err != nil {
		return hello{}, 0, err
	}
	meet := peer.purpose == forMeeting && mine.purpose == forControl // one listener serves both
	if peer.job != mine.job || peer.to != mine.from || peer.purpose != mine.purpose && !meet {
		return hello{}, 0, stranger("read hello: %w", errNotForUs)
	}
	mine.to, mine.purpose = peer.from, peer.purpose
	b := mine.encode()
	if _, err := rw.Write(b[:]); err != nil {
		return hello{}, 0, stranger("write hello: %w", err)
	}
	p, err := readProof(rw)
	if err != nil {
		return hello{}, 0, err
	}
	if p.code != 0 || !p.equal(prove(token, "dial", 0, &peer, &mine)) {
		no := proof{code: codeToken}.encode()
		rw.Write(no[:]) // a courtesy: the error is ours already
		return peer, codeToken, ErrToken
	}
	code := judge(peer)
	v := prove(token, "answer", code, &peer, &mine).encode()
	if _, err := rw.Write(v[:]); err != nil {
		return peer, code, stranger("write verdict: %w", err)
	}
	return peer, code, nil
}

// mismatch compares what must be equal on all ranks; nil if it is.
func mismatch(mine, peer *hello, pid int) error {
	e := &MismatchError{Rank: int(mine.from), Peer: int(peer.from), PeerPID: pid}
	switch {
	case mine.version != peer.version:
		e.What, e.Mine, e.Theirs = "version", fmt.Sprint(mine.version), fmt.Sprint(peer.version)
	case mine.layout != peer.layout:
		e.What, e.Mine, e.Theirs = "layout hash", fmt.Sprintf("%#016x", mine.layout), fmt.Sprintf("%#016x", peer.layout)
	case mine.size != peer.size:
		e.What, e.Mine, e.Theirs = "size", fmt.Sprint(mine.size), fmt.Sprint(peer.size)
	default:
		return nil
	}
	return e
}
