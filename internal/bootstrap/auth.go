// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"crypto/rand"
	"fmt"
	"net"
	"sync"
)

// Auth does the mutual handshake of Join on a plugin's data sockets, with labels of its own: what proves one end of a
// control socket proves nothing on a data socket. Without a token it tells jobs and ranks apart, and lets in the job's
// hosts alone. The zero value accepts nobody. Its methods may be called from several goroutines.
type Auth struct {
	c    *Config
	door *door // nil: the token keeps strangers out
}

// AuthOf makes the handshake of a rank for its job's data sockets. g is of Join.
func AuthOf(g Group) (Auth, error) {
	x, ok := g.(*group)
	if !ok || x.ident == nil {
		panic(errNotOurs)
	}
	a := Auth{c: x.ident}
	if len(a.c.Token) > 0 {
		return a, nil
	}
	var err error
	a.door, err = newDoor(x)
	return a, err
}

// Refused is how many sockets Answer has refused because they came from no host of this job. Strangers with a wrong token
// are not among them.
func (a Auth) Refused() uint64 {
	if a.door == nil {
		return 0
	}
	return a.door.refused.Load()
}

// auth is of a config alone.
func (c Config) auth() Auth {
	c.Token = append([]byte(nil), c.Token...)
	return Auth{c: &c}
}

// LocalAuth makes the handshakes of the n ranks of a [Local] group. Their secret is this process's: only it can make
// them.
func LocalAuth(n int) []Auth {
	out := make([]Auth, n)
	for r := range out {
		out[r] = Config{Rank: r, Size: n, Job: "this process", Token: processSecret()}.auth()
	}
	return out
}

var processSecret = sync.OnceValue(func() []byte {
	b := make([]byte, 32)
	rand.Read(b) // never fails: the runtime ends the process instead
	return b
})

// Dial is the dialing end's half, over a socket on which nothing was sent yet: conn's other end is rank to of this job
// if it returns nil. It writes and reads 304 bytes in all and leaves what follows them unread. It blocks until done, or by
// conn's deadline, which is the caller's to set and to clear; it does not close conn.
//
// Errors: ErrToken (another token at the other end), *MismatchError (another version, layout or size), or one that says
// that the other end is not that rank.
func (a Auth) Dial(conn net.Conn, to int) error {
	if a.c == nil || to < 0 || to >= a.c.Size {
		return a.wrap("dial", to, fmt.Errorf("rank is out of range"))
	}
	mine := newHello(a.c, to)
	mine.purpose = forData
	peer, code, err := dialShake(conn, &mine, a.c.Token)
	if err != nil {
		return a.wrap("dial", to, err)
	}
	if err := mismatch(&mine, &peer, int(peer.pid)); err != nil {
		return a.wrap("dial", to, err)
	}
	if code != codeAccept {
		return a.wrap("dial", to, fmt.Errorf("refused with code %d", code))
	}
	return nil
}

// Answer is the listening end's half of Dial and returns which rank the other end is; -1 with an error. What is said of
// Dial holds here too. Without a token, who does not come from a host of the job is refused before a byte is read, and
// counted (Refused), with one line in the log.
func (a Auth) Answer(conn net.Conn) (from int, err error) {
	if a.c == nil {
		return -1, a.wrap("answer", -1, fmt.Errorf("no job"))
	}
	if err := a.door.admit(conn, -1); err != nil {
		return -1, a.wrap("answer", -1, err)
	}
	mine := newHello(a.c, 0)
	mine.purpose = forData
	peer, code, err := answerShake(conn, mine, a.c.Token, func(p hello) uint8 {
		switch {
		case a.door.admit(conn, int(p.from)) != nil:
			return codeMisplace
		case mismatch(&mine, &p, 0) != nil:
			return codeMismatch
		}
		return codeAccept
	})
	switch {
	case err != nil:
	case code == codeMisplace:
		err = fmt.Errorf("%s is not its host", conn.RemoteAddr())
	case code == codeMismatch:
		err = mismatch(&mine, &peer, int(peer.pid))
	default:
		return int(peer.from), nil
	}
	return -1, a.wrap("answer", int(peer.from), err)
}

func (a Auth) wrap(what string, peer int, err error) error {
	rank := -1
	if a.c != nil {
		rank = a.c.Rank
	}
	return fmt.Errorf("bootstrap: rank %d: %s data socket of rank %d: %w", rank, what, peer, err)
}
