// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

func pipe(t *testing.T) (net.Conn, net.Conn) {
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// authPair runs both halves. The answering end closes on an error, as a plugin would.
func authPair(t *testing.T, dial, answer Auth, to int) (from int, derr, aerr error) {
	c, s := pipe(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if from, aerr = answer.Answer(s); aerr != nil {
			s.Close()
		}
	}()
	if derr = dial.Dial(c, to); derr != nil {
		c.Close()
	}
	<-done
	return from, derr, aerr
}

func TestAuth(t *testing.T) {
	auth := func(r int, edit func(*Config)) Auth {
		c := testConfig(r, 3, "")
		if edit != nil {
			edit(&c)
		}
		return c.auth()
	}
	if from, d, a := authPair(t, auth(2, nil), auth(1, nil), 1); from != 2 || d != nil || a != nil {
		t.Errorf("%d, %v, %v", from, d, a)
	}
	none := func(c *Config) { c.Token = nil }
	if from, d, a := authPair(t, auth(0, none), auth(1, none), 1); from != 0 || d != nil || a != nil {
		t.Errorf("no token: %d, %v, %v", from, d, a)
	}
	local := LocalAuth(2)
	if from, d, a := authPair(t, local[0], local[1], 1); from != 0 || d != nil || a != nil {
		t.Errorf("local: %d, %v, %v", from, d, a)
	}
	for what, edit := range map[string]func(*Config){
		"token differs":       func(c *Config) { c.Token = []byte("x") },
		"version differs":     func(c *Config) { c.Version = 9 },
		"layout hash differs": func(c *Config) { c.LayoutHash = 9 },
		"size differs":        func(c *Config) { c.Size = 9 },
		"another job":         func(c *Config) { c.Job = "x" },
		"rank or purpose":     func(c *Config) { c.Rank = 0 },
	} {
		from, d, a := authPair(t, auth(2, nil), auth(1, edit), 1)
		if d == nil || a == nil || from != -1 || !strings.Contains(a.Error(), what) && !strings.Contains(d.Error(), what) {
			t.Errorf("%s: %d, %v, %v", what, from, d, a)
		}
	}
	if err := (Auth{}).Dial(nil, 0); err == nil {
		t.Error("zero value dials")
	}
	if _, err := (Auth{}).Answer(nil); err == nil {
		t.Error("zero value answers")
	}
	if err := auth(0, nil).Dial(nil, 3); err == nil || !strings.Contains(err.Error(), "out of range") {
		t.Error(err)
	}
}

// What proves an end of one kind of socket is refused on the other, and so is what was recorded of the same kind.
func TestAuthIsApart(t *testing.T) {
	a := sampleHello()
	b := a
	b.from, b.to = 0, 1
	base := prove([]byte("t"), "dial", 0, &a, &b)
	for p := range uint32(forMost) {
		x, y := a, b
		x.purpose, y.purpose = p+1, p+1
		if prove([]byte("t"), "dial", 0, &x, &y).mac == base.mac {
			t.Errorf("purpose %d proves as 0 does", p+1)
		}
	}
	c0, c1 := testConfig(0, 2, ""), testConfig(1, 2, "")
	c, s := pipe(t)
	go func() {
		h := newHello(&c1, 0)
		dialShake(c, &h, c1.Token)
		c.Close()
	}()
	if _, err := c0.auth().Answer(s); !errors.Is(err, errNotForUs) {
		t.Errorf("control handshake on a data socket: %v", err)
	}
	var sent bytes.Buffer
	c, s = pipe(t)
	go func() {
		c0.auth().Answer(s)
	}()
	if err := c1.auth().Dial(tee{c, &sent}, 0); err != nil {
		t.Fatal(err)
	}
	c, s = pipe(t)
	go io.Copy(io.Discard, c)
	go c.Write(sent.Bytes())
	if _, err := c0.auth().Answer(s); !errors.Is(err, ErrToken) {
		t.Errorf("replayed: %v", err)
	}
}

type tee struct {
	net.Conn
	w io.Writer
}

func (t tee) Write(b []byte) (int, error) {
	t.w.Write(b)
	return t.Conn.Write(b)
}

func FuzzAuth(f *testing.F) {
	c0, c1 := testConfig(0, 2, ""), testConfig(1, 2, "")
	h := newHello(&c1, 0)
	h.purpose = forData
	e := h.encode()
	f.Add(e[:])
	f.Add(append(bytes.Clone(e[:]), make([]byte, proofBytes)...))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		conn := fakeConn{Reader: bytes.NewReader(b)}
		if _, err := c0.auth().Answer(conn); err == nil {
			t.Fatal("answering end believed it")
		}
		conn = fakeConn{Reader: bytes.NewReader(b)}
		if err := c1.auth().Dial(conn, 0); err == nil {
			t.Fatal("dialing end believed it")
		}
	})
}

type fakeConn struct {
	net.Conn
	io.Reader
}

func (f fakeConn) Read(b []byte) (int, error)  { return f.Reader.Read(b) }
func (f fakeConn) Write(b []byte) (int, error) { return len(b), nil }
