// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"bytes"
	"errors"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

// checkGraphs replays a recording of every kind of item, with other input each time.
func checkGraphs(b *bed) {
	const n, times = 5000, 100
	in, mid, out := b.alloc(n), b.alloc(n), b.alloc(n)
	notes, host := b.keep(b.dev.AllocHost(24)), b.keep(b.dev.AllocHost(n))
	note := gpu.Cast[uint64](notes.Ptr())
	runs, wrong := b.words(6), b.words(1)
	var recorder device.Stream
	g := b.capture(func(s device.Stream) error {
		recorder = s
		return errors.Join(
			s.Launch(CountKernel.Bind(CountArgs{runs.Ptr, wrong.Ptr, 3, 2}), device.Grid{Blocks: 3, Warps: 2}),
			s.Launch(MeetKernel.Bind(MeetArgs{runs.Ptr, wrong.Ptr, 0}), device.Grid{Blocks: 1, Warps: 1, Cooperative: true}),
			s.Copy(mid.Ptr(), in.Ptr(), n), s.Fill(mid.Ptr().Byte(1), 9, 2), s.Through(out.Ptr(), mid.Ptr(), n, host.Ptr(), n/3, false),
			s.Store(note, 5), s.StoreBoth(note.At(1), 6, note.At(2), 7))
	})
	if runs.get(0) != 0 || !bytes.Equal(b.bytes(out), make([]byte, n)) {
		b.Error("what was recorded was done")
	}
	if recorder.Fill(out.Ptr(), 1, 1) == nil {
		b.Error("a graph that was recorded took one more item")
	}
	s := b.stream()
	for i := range times {
		b.must(s.Fill(in.Ptr(), byte(i), n))
		b.must(s.Replay(g))
		if i%10 != 0 {
			continue
		}
		b.must(b.wait(s))
		want := bytes.Repeat([]byte{byte(i)}, n)
		want[1], want[2] = 9, 9
		if !bytes.Equal(b.bytes(out), want) {
			b.Fatalf("replay %d: it did not read its input anew", i)
		}
	}
	b.must(g.Close()) // replays that are queued are done
	b.must(g.Close())
	b.must(b.wait(s))
	// Word 0 is counted by both kernels.
	if runs.get(0) != 2*times || runs.get(5) != times || wrong.get(0) != 0 {
		b.Errorf("%d replays: kernels ran %d and %d times, %d threads saw another shape", times, runs.get(0)-runs.get(5), runs.get(5), wrong.get(0))
	}
	for i, want := range []uint64{5, 6, 7} {
		if got := gpu.Load(note.At(i), gpu.Acquire, gpu.ScopeSys); got != want {
			b.Errorf("word %d is %d, want %d", i, got, want)
		}
	}
	if s.Replay(g) == nil {
		b.Error("a graph was replayed after it was closed")
	}
	b.must(b.capture(func(device.Stream) error { return nil }).Close())
	checkGraphsRefuse(b, s)
}

func (b *bed) capture(f func(device.Stream) error) device.Graph {
	b.Helper()
	g, err := b.dev.Capture(f)
	b.must(err)
	return g
}

// checkGraphsRefuse: what has no place in a graph is refused, and no graph is made.
func checkGraphsRefuse(b *bed, s device.Stream) {
	whole := b.capture(func(device.Stream) error { return nil })
	own := errors.New("its own")
	for what, f := range map[string]func(device.Stream) error{
		"its function's failure": func(device.Stream) error { return own },
		"a wait":                 func(r device.Stream) error { _ = r.Wait(b.Context()); return nil },
		"an event":               func(r device.Stream) error { return r.Record().Wait(b.Context()) },
		"another stream's event": func(r device.Stream) error { r.WaitEvent(s.Record()); return nil },
		"a graph":                func(r device.Stream) error { return r.Replay(whole) },
		"a shape": func(r device.Stream) error {
			return r.Launch(CountKernel.Bind(CountArgs{}), device.Grid{Blocks: 1, Warps: 33})
		},
	} {
		g, err := b.dev.Capture(f)
		if err == nil {
			b.must(g.Close())
			b.Errorf("%s: a graph was made", what)
		} else if what == "its function's failure" && !errors.Is(err, own) {
			b.Errorf("%s: %v", what, err)
		}
	}
	b.must(whole.Close())
	if s.Replay(nil) == nil {
		b.Error("no graph was replayed")
	}
	b.run(s, CountKernel.Bind(CountArgs{b.words(1).Ptr, b.words(1).Ptr, 1, 1}), one) // the stream is none the worse
}
