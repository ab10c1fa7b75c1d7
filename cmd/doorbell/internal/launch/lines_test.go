// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestLinesAgainstSplitting: however a stream is cut into writes, the output is each line with its prefix.
func TestLinesAgainstSplitting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alphabet := rapid.SampledFrom([]byte{'\n', '\n', 'a', 0, 0xff, '\r'})
		stream := rapid.SliceOfN(alphabet, 0, 200).Draw(t, "stream")
		var got bytes.Buffer
		l := &lines{to: &sink{w: &got}, prefix: "[3] "}
		for rest := stream; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			if w, err := l.Write(rest[:n]); w != n || err != nil {
				t.Fatalf("wrote %d of %d: %v", w, n, err)
			}
			rest = rest[n:]
		}
		l.Close()
		var want []byte
		for _, line := range bytes.SplitAfter(stream, []byte("\n")) {
			if len(line) > 0 {
				want = append(append(want, "[3] "...), bytes.TrimSuffix(line, []byte("\n"))...)
				want = append(want, '\n')
			}
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("%q, want %q", got.Bytes(), want)
		}
	})
}

func TestLongLineIsCut(t *testing.T) {
	for _, chunk := range []int{1000, maxLine, maxLine + 1, 3 * maxLine} {
		var got bytes.Buffer
		l := &lines{to: &sink{w: &got}, prefix: "[0] "}
		for part := range slices.Chunk(bytes.Repeat([]byte("x"), 3*maxLine), chunk) {
			l.Write(part)
			if len(l.held) >= maxLine {
				t.Fatalf("%d bytes held", len(l.held))
			}
		}
		l.Write([]byte("end\n"))
		l.Close()
		piece := "[0] " + strings.Repeat("x", maxLine) + "\n"
		if want := piece + piece + piece + "[0] end\n"; got.String() != want {
			t.Errorf("chunks of %d: %d bytes, want %d", chunk, got.Len(), len(want))
		}
	}
}

type brokenWriter struct{ calls int }

func (b *brokenWriter) Write([]byte) (int, error) { b.calls++; return 0, errors.New("broken") }

func TestBrokenWriterDoesNotStopTheRank(t *testing.T) {
	b := &brokenWriter{}
	l := &lines{to: &sink{w: b}, prefix: "[0] "}
	for range 3 {
		if n, err := l.Write([]byte("x\n")); n != 2 || err != nil {
			t.Fatal(n, err)
		}
	}
	if b.calls != 1 {
		t.Errorf("a broken writer was written to %d times", b.calls)
	}
}
