// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// maxLine is the longest piece of output that is held back for its newline, in bytes. A longer line is cut into pieces,
// each with its prefix, so that a rank that never writes a newline costs bounded memory.
const maxLine = 64 << 10

// sink lets several ranks write whole lines to one writer. After a failed write it drops the rest, and ranks go on.
type sink struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		_, s.err = s.w.Write(b)
	}
	return len(b), nil
}

// lines is one rank's stream on its way to a sink. Bytes are passed on as they are; only prefixes are put in, and a
// newline after a line that is cut or that the stream ends within.
type lines struct {
	to     io.Writer
	prefix string
	held   []byte // a line without its newline; shorter than maxLine
	out    []byte // reused
	last   string // see noteLine
}

func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	l.out = l.out[:0]
	for len(b) > 0 {
		end := bytes.IndexByte(b, '\n')
		take := end + 1
		if end < 0 {
			take = len(b)
		}
		if room := maxLine - len(l.held); take > room {
			take, end = room, -1
		}
		l.held = append(l.held, b[:take]...)
		b = b[take:]
		if end >= 0 || len(l.held) == maxLine {
			l.emit()
		}
	}
	return n, l.flushOut()
}

// Close passes on a last line that has no newline.
func (l *lines) Close() error {
	l.out = l.out[:0]
	if len(l.held) > 0 {
		l.emit()
	}
	return l.flushOut()
}

func (l *lines) emit() {
	l.noteLine()
	l.out = append(l.out, l.prefix...)
	l.out = append(l.out, l.held...)
	if l.held[len(l.held)-1] != '\n' {
		l.out = append(l.out, '\n')
	}
	l.held = l.held[:0]
}

func (l *lines) flushOut() error {
	if len(l.out) == 0 {
		return nil
	}
	_, err := l.to.Write(l.out)
	return err
}

const maxDetail = 400 // bytes of a line that an error quotes

// noteLine remembers a line of our own kind, which begins with "doorbell": if the rank fails, that is most likely why.
func (l *lines) noteLine() {
	if bytes.HasPrefix(l.held, []byte("doorbell")) {
		line := bytes.TrimSpace(l.held[:min(len(l.held), maxDetail)])
		l.last = strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f || r == '\uFFFD' {
				return -1
			}
			return r
		}, string(line))
	}
}
