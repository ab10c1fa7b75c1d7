// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares lines "name hex" with testdata/wire.golden: a change there breaks ranks of other builds.
func golden(t *testing.T, file string, lines []string) {
	t.Helper()
	got := strings.Join(lines, "\n") + "\n"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs:\n%s\nwant\n%s", file, got, want)
	}
}

var sampleFrames = []frame{
	{kind: kindData, seq: 1, name: "windows", payload: []byte("blob"), fds: 3},
	{kind: kindData, seq: 1<<64 - 1},
	{kind: kindRights, seq: 2, fds: rightsBatch},
	{kind: kindFail, seq: 3, name: "x", payload: []byte("duplicate descriptor 9: bad file descriptor")},
	{kind: kindGoodbye, payload: []byte("reason")},
	{kind: kindGoodbye},
}

func sameFrame(a, b frame) bool {
	return a.kind == b.kind && a.fds == b.fds && a.seq == b.seq && a.name == b.name && bytes.Equal(a.payload, b.payload)
}

func TestFrameGolden(t *testing.T) {
	var lines []string
	for i, f := range sampleFrames {
		b, err := appendFrame(nil, &f)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("frame%d %s", i, hex.EncodeToString(b)))
		for _, r := range []io.Reader{bytes.NewReader(b), iotest.OneByteReader(bytes.NewReader(b))} {
			if got, err := readFrame(r); err != nil || !sameFrame(got, f) {
				t.Errorf("frame %d: %+v, %v, want %+v", i, got, err, f)
			}
		}
		for cut := range b {
			want := io.ErrUnexpectedEOF
			if cut == 0 {
				want = io.EOF
			}
			if _, err := readFrame(bytes.NewReader(b[:cut])); !errors.Is(err, want) {
				t.Errorf("frame %d cut at %d: %v, want %v", i, cut, err, want)
			}
		}
	}
	golden(t, "testdata/frame.golden", lines)
}

func TestFrameRefused(t *testing.T) {
	for what, f := range map[string]frame{
		"kind is 0":               {},
		"kind is 10":              {kind: 10},
		"name length is 256":      {kind: kindData, name: strings.Repeat("n", 256)},
		"payload is 16777217":     {kind: kindData, payload: make([]byte, MaxBytes+1)},
		"descriptor count is 999": {kind: kindRights, fds: 999},
		"descriptor count is -1":  {kind: kindData, fds: -1},
		"no descriptors":          {kind: kindRights},
		"sequence is 1":           {kind: kindGoodbye, seq: 1},
		"payload is 1025":         {kind: kindFail, payload: make([]byte, 1025)},
		"name length is 1":        {kind: kindRights, fds: 1, name: "x"},
	} {
		if _, err := appendFrame(nil, &f); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("encode: %v, want %q", err, what)
		}
	}
	good, _ := appendFrame(nil, &sampleFrames[0])
	for what, edit := range map[string]func(b []byte){
		"magic":                  func(b []byte) { b[0]++ },
		"kind is 77":             func(b []byte) { b[4] = 77 },
		"body length is 3":       func(b []byte) { b[8] = 3 },
		"body length is 4294":    func(b []byte) { copy(b[8:], "\xff\xff\xff\xff") },
		"reserved":               func(b []byte) { b[13] = 1 },
		"name hash":              func(b []byte) { b[24]++ },
		`that of "Windows"`:      func(b []byte) { b[32] = 'W' },
		"descriptor count is 65": func(b []byte) { b[6], b[7] = 0xff, 0xff },
	} {
		b := bytes.Clone(good)
		edit(b)
		if _, err := readFrame(bytes.NewReader(b)); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("decode: %v, want %q", err, what)
		}
	}
}

// A peer that announces much and sends little must not make us allocate much.
func TestFrameAllocatesWhatCame(t *testing.T) {
	b, _ := appendFrame(nil, &frame{kind: kindData, payload: make([]byte, MaxBytes)})
	b = b[:headerBytes+10]
	const runs = 16
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		readFrame(bytes.NewReader(b))
	}
	runtime.ReadMemStats(&after)
	got := (after.TotalAlloc - before.TotalAlloc) / runs
	if got > 1<<18 {
		t.Errorf("%d bytes allocated for %d that came", got, len(b))
	}
}

func FuzzFrame(f *testing.F) {
	for i := range sampleFrames {
		b, _ := appendFrame(nil, &sampleFrames[i])
		f.Add(b)
	}
	f.Add([]byte("GET / HTTP/1.1\r\nHost: example\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		a := assembly{}
		for {
			used := len(b) - r.Len()
			fr, err := readFrame(r)
			if err != nil {
				return
			}
			again, err := appendFrame(nil, &fr)
			if err != nil || !bytes.Equal(again, b[used:len(b)-r.Len()]) {
				t.Fatalf("frame %+v encodes to %x (%v), came as %x", fr, again, err, b[used:len(b)-r.Len()])
			}
			switch fr.kind {
			case kindRights:
				if a.add(fr.seq, fr.fds, batch{}) != nil {
					return
				}
			case kindData, kindFail:
				c, err := a.finish(&fr)
				if err != nil {
					return
				}
				if c.err == nil && fr.fds != 0 {
					t.Fatal("descriptors out of nowhere")
				}
			}
			if a.announced > MaxFDs {
				t.Fatalf("%d descriptors announced", a.announced)
			}
		}
	})
}

func sampleHello() hello {
	h := hello{version: 2, from: 1, to: 0, size: 4, layout: 0x1122334455667788, pid: 99}
	for i := range h.nonce {
		h.nonce[i], h.job[i] = byte(i), byte(0xff-i)
	}
	return h
}

func TestHandshakeGolden(t *testing.T) {
	a := sampleHello()
	b := a
	b.from, b.to, b.nonce[0] = 0, 1, 0x80
	ea, eb := a.encode(), b.encode()
	pa := prove([]byte("token"), "dial", 0, &a, &b).encode()
	pb := prove([]byte("token"), "answer", codeTaken, &a, &b).encode()
	golden(t, "testdata/handshake.golden", []string{
		"helloA " + hex.EncodeToString(ea[:]), "helloB " + hex.EncodeToString(eb[:]),
		"dial " + hex.EncodeToString(pa[:]), "answer " + hex.EncodeToString(pb[:]),
	})
	if got, err := decodeHello(&ea); err != nil || got != a {
		t.Errorf("%+v, %v", got, err)
	}
}

// Every bit of what the proof covers must count, the token first.
func TestProofCoversAll(t *testing.T) {
	a := sampleHello()
	b := a
	b.from, b.to = 0, 1
	base := prove([]byte("token"), "dial", 0, &a, &b)
	seen := map[[32]byte]string{base.mac: "base"}
	add := func(what string, p proof) {
		if other, dup := seen[p.mac]; dup {
			t.Errorf("%s proves the same as %s", what, other)
		}
		seen[p.mac] = what
	}
	add("token", prove([]byte("tokem"), "dial", 0, &a, &b))
	add("no token", prove(nil, "dial", 0, &a, &b))
	add("label", prove([]byte("token"), "answer", 0, &a, &b))
	add("code", prove([]byte("token"), "dial", 1, &a, &b))
	add("swapped", prove([]byte("token"), "dial", 0, &b, &a))
	for what, edit := range map[string]func(h *hello){
		"version": func(h *hello) { h.version++ }, "from": func(h *hello) { h.from++ }, "to": func(h *hello) { h.to++ },
		"size": func(h *hello) { h.size++ }, "layout": func(h *hello) { h.layout++ }, "nonce": func(h *hello) { h.nonce[31]++ },
		"job": func(h *hello) { h.job[31]++ }, "pid": func(h *hello) { h.pid++ },
	} {
		x, y := a, b
		edit(&x)
		edit(&y)
		add(what+" of dialer", prove([]byte("token"), "dial", 0, &x, &b))
		add(what+" of listener", prove([]byte("token"), "dial", 0, &a, &y))
	}
}

// pipeRW joins two ends in memory, one byte per read.
type pipeRW struct {
	io.Reader
	io.Writer
}

func shake(t *testing.T, dialToken, listenToken string, wire io.Writer) (dialErr, listenErr error) {
	r1, w1 := io.Pipe()
	r2, w2 := io.Pipe()
	dialer := pipeRW{iotest.OneByteReader(r2), io.MultiWriter(w1, wire)}
	listener := pipeRW{iotest.OneByteReader(r1), w2}
	c0, c1 := testConfig(0, 2, "unix:@x"), testConfig(1, 2, "unix:@x")
	done := make(chan error)
	go func() {
		_, _, err := answerShake(listener, newHello(&c0, 0), []byte(listenToken), func(h hello) uint8 { return codeAccept })
		w2.Close()
		done <- err
	}()
	h := newHello(&c1, 0)
	_, _, dialErr = dialShake(dialer, &h, []byte(dialToken))
	w1.Close()
	return dialErr, <-done
}

func TestHandshakeTokens(t *testing.T) {
	var wire bytes.Buffer
	if d, l := shake(t, "the token", "the token", &wire); d != nil || l != nil {
		t.Errorf("same token: %v, %v", d, l)
	}
	if bytes.Contains(wire.Bytes(), []byte("the token")) {
		t.Error("the token is on the wire")
	}
	for _, p := range [][2]string{{"a", "b"}, {"", "b"}, {"a", ""}} {
		if d, l := shake(t, p[0], p[1], io.Discard); !errors.Is(d, ErrToken) || !errors.Is(l, ErrToken) {
			t.Errorf("tokens %q: %v, %v", p, d, l)
		}
	}
}

// A listener that only plays the dialer's own proof back has not proven anything.
func TestHandshakeReflection(t *testing.T) {
	c := testConfig(1, 2, "unix:@x")
	h := newHello(&c, 0)
	var sent bytes.Buffer
	mirror := &mirrorRW{sent: &sent}
	if _, _, err := dialShake(mirror, &h, c.Token); !errors.Is(err, ErrToken) {
		t.Errorf("reflected: %v, want ErrToken", err)
	}
}

type mirrorRW struct {
	sent *bytes.Buffer
}

func (m *mirrorRW) Write(b []byte) (int, error) {
	c := bytes.Clone(b)
	if len(c) == helloBytes { // from and to swapped, all else as it came
		copy(c[12:16], b[16:20])
		copy(c[16:20], b[12:16])
	}
	m.sent.Write(c)
	return len(b), nil
}

func (m *mirrorRW) Read(b []byte) (int, error) { return m.sent.Read(b) }

// Whatever the other end sends, without the token neither half succeeds, and neither reads on for ever.
func FuzzHandshake(f *testing.F) {
	c0, c1 := testConfig(0, 2, "unix:@x"), testConfig(1, 2, "unix:@x")
	h0, h1 := newHello(&c0, 1), newHello(&c1, 0)
	e0, e1 := h0.encode(), h1.encode()
	p := prove([]byte("other"), "dial", 0, &h1, &h0).encode()
	no := proof{code: codeToken}.encode()
	f.Add(e1[:])
	f.Add(append(bytes.Clone(e1[:]), p[:]...))
	f.Add(append(bytes.Clone(e0[:]), p[:]...))
	f.Add(append(bytes.Clone(e0[:]), no[:]...))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: example\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := dialShake(pipeRW{bytes.NewReader(b), io.Discard}, &h1, c1.Token); err == nil {
			t.Fatal("dialer believed it")
		}
		judged := false
		_, _, err := answerShake(pipeRW{bytes.NewReader(b), io.Discard}, h0, c0.Token, func(hello) uint8 { judged = true; return codeAccept })
		if err == nil || judged {
			t.Fatal("listener believed it")
		}
		if len(b) >= helloBytes {
			if h, err := decodeHello((*[helloBytes]byte)(b)); err == nil {
				if e := h.encode(); !bytes.Equal(e[:], b[:helloBytes]) {
					t.Fatalf("hello %+v encodes to %x, came as %x", h, e, b[:helloBytes])
				}
			}
		}
	})
}
