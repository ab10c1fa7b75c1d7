// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

func TestMain(m *testing.M) {
	flag.Parse()
	testenv.Rapid(40, 1000)
	os.Exit(m.Run())
}

// TestOrder has streams of two ranks change the same bytes, each change on any of them, told to wait for the one before. The
// bytes must come out as if one did it all, in order: whatever was closed, opened, taken and freed meanwhile.
func TestOrder(t *testing.T) {
	d := newDouble(t)
	checkOrder(t, [2]*cuda.Device{d.open(cuda.Options{Ranks: 2}), d.open(cuda.Options{Ranks: 2})})
}

func checkOrder(d *testing.T, devs [2]*cuda.Device) {
	const n = 64
	rapid.Check(d, func(t *rapid.T) {
		mem := must[device.Memory](d)(devs[0].Alloc(n))
		at := must[device.Memory](d)(devs[1].Import(mem.Handle()))
		host := must[device.Memory](d)(devs[0].AllocHost(n))
		var streams []device.Stream
		for i := range 4 {
			streams = append(streams, devs[i%2].NewStream())
		}
		want := make([]byte, n)
		last := streams[0].Record()
		var spare []device.Memory
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			i := rapid.IntRange(0, 3).Draw(t, "stream")
			s := streams[i]
			s.WaitEvent(last)
			off := rapid.IntRange(0, n-1).Draw(t, "offset")
			size := rapid.IntRange(0, (n-off)/2).Draw(t, "bytes")
			v := rapid.Byte().Draw(t, "value")
			var err error
			switch rapid.IntRange(0, 7).Draw(t, "kind") {
			case 0:
				err = s.Fill(at.Ptr().Byte(uint64(off)), v, size)
				copy(want[off:], bytes.Repeat([]byte{v}, size))
			case 1:
				err = s.Launch(devicetest.FillKernel.Bind(devicetest.FillArgs{To: mem.Ptr().Byte(uint64(off)), Bytes: uint64(size), Value: uint32(v)}), device.Grid{Blocks: 2, Warps: 1})
				copy(want[off:], bytes.Repeat([]byte{v}, size))
			case 2:
				err = s.Copy(at.Ptr().Byte(uint64(off+size)), mem.Ptr().Byte(uint64(off)), size)
				copy(want[off+size:], bytes.Clone(want[off:off+size]))
			case 3:
				word := uint64(v) * 0x0102030405060708
				err = s.Store(gpu.Cast[uint64](at.Ptr()).At(off/8), word)
				binary.LittleEndian.PutUint64(want[off/8*8:], word)
			case 6: // into the host's memory and back, in two halves each
				half := uint64(size+1) / 2
				if size < 2 {
					break
				}
				there, here := []gpu.Ptr[byte]{host.Ptr(), host.Ptr().Byte(half)}, []gpu.Ptr[byte]{mem.Ptr().Byte(uint64(off)), mem.Ptr().Byte(uint64(off) + half)}
				sizes := []uint64{half, uint64(size) - half}
				back := []gpu.Ptr[byte]{at.Ptr().Byte(uint64(off + size)), at.Ptr().Byte(uint64(off+size) + half)}
				err = errors.Join(s.Copies(there, here, sizes), s.Copies(back, there, sizes))
				copy(want[off+size:], bytes.Clone(want[off:off+size]))
			case 7: // by way of the host's memory
				err = s.Through(at.Ptr().Byte(uint64(off+size)), mem.Ptr().Byte(uint64(off)), size, host.Ptr(), 1+size/3, false)
				copy(want[off+size:], bytes.Clone(want[off:off+size]))
			case 4: // a stream ends and another takes its place, and its mark
				shut(d, s.Close)
				streams[i] = devs[i%2].NewStream()
				s = streams[i]
			case 5:
				spare = append(spare, must[device.Memory](d)(devs[i%2].Alloc(100)))
				if v%2 == 0 {
					shut(d, spare[len(spare)-1].Free)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			last = s.Record()
		}
		for _, s := range streams {
			if err := within(d, s); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, n)
		if err := at.Read(0, got); err != nil || !bytes.Equal(got, want) || !last.Done() {
			t.Errorf("bytes are\n%x, want\n%x (%v)", got, want, err)
		}
		for _, s := range streams {
			shut(d, s.Close)
		}
		for _, m := range append(spare, mem, at, host) {
			shut(d, m.Free)
		}
	})
	for _, dev := range devs {
		shut(d, dev.Close)
	}
}

// TestLateWaiter: a stream is told to wait for another's last item, and is held up before it looks. Meanwhile the other ends,
// and a new one takes its mark. The first finds it done all the same.
func TestLateWaiter(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	first := dev.NewStream()
	held := gate(t, dev)
	d.Until("running", 1)
	runs, wrong := must[device.Memory](t)(dev.Alloc(4)), must[device.Memory](t)(dev.Alloc(4))
	resume := d.Pause()
	for range 3 {
		if err := first.Launch(nothingKernel.Bind(struct{}{}), one); err != nil {
			t.Fatal(err)
		}
	}
	held.stream.WaitEvent(first.Record()) // stands behind the gate
	step := devicetest.StepKernel.Bind(devicetest.StepArgs{Cell: word32(runs), Wrong: word32(wrong)})
	if err := held.stream.Launch(step, one); err != nil {
		t.Fatal(err)
	}
	resume()
	shut(t, first.Close)
	next := dev.NewStream()
	if err := next.Launch(nothingKernel.Bind(struct{}{}), one); err != nil || within(t, next) != nil {
		t.Fatal(err)
	}
	held.open()
	got := make([]byte, 4)
	if err := runs.Read(0, got); err != nil || got[0] != 1 {
		t.Errorf("the kernel behind the wait ran %d times (%v)", got[0], err)
	}
	shut(t, next.Close)
	shut(t, runs.Free)
	shut(t, wrong.Free)
	shut(t, dev.Close)
}

// TestMarks: how far a stream is, is stored when somebody asks and not before, once for all that ask at one point, and every
// 64 items by itself; in a recording never.
func TestMarks(t *testing.T) {
	d := newDouble(t)
	dev := d.open(cuda.Options{})
	s := dev.NewStream()
	mem, host := must[device.Memory](t)(dev.Alloc(8)), must[device.Memory](t)(dev.AllocHost(2))
	marks := func() int { return d.Count("cuStreamWriteValue64_v2") }
	before := marks()
	g := must[device.Graph](t)(dev.Capture(func(s device.Stream) error { return s.Through(mem.Ptr().Byte(4), mem.Ptr(), 4, host.Ptr(), 1, false) }))
	if n := marks() - before; n != 0 {
		t.Errorf("%d marks in a recording: replays would store them where another stream has its own by then", n)
	}
	for _, f := range []func() error{g.Close, mem.Free, host.Free} {
		shut(t, f)
	}
	resume := d.Pause()
	before = marks()
	launch := func(n int) {
		for range n {
			if err := s.Launch(nothingKernel.Bind(struct{}{}), one); err != nil {
				t.Fatal(err)
			}
		}
	}
	launch(63)
	if n := marks() - before; n != 0 {
		t.Errorf("%d marks that nobody asked for", n)
	}
	for range 3 {
		s.Record()
	}
	if n := marks() - before; n != 1 {
		t.Errorf("%d marks at one point", n)
	}
	launch(200)
	if n := marks() - before; n != 1+3 {
		t.Errorf("%d marks after 200 items more, want 3 more", n-1)
	}
	resume()
	shut(t, s.Close)
	before = marks()
	shut(t, dev.Close)
	if e := s.Record(); !e.Done() || marks() != before {
		t.Error("a stream that is closed is not done, or asks the driver")
	}
}
