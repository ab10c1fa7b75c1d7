// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"bytes"
	"errors"
	"slices"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

func checkMemory(b *bed) {
	s := b.stream()
	for _, n := range []int{1, 7, 4095, 4096, 4097, 1<<20 + 3} {
		for range 2 { // what was freed comes back zeroed
			m, err := b.dev.Alloc(n)
			b.must(err)
			if m.Handle().Bytes != n || (m.Bytes() != nil) != b.dev.Powers().HostView || m.Bytes() != nil && len(m.Bytes()) != n {
				b.Errorf("%d bytes asked for: the view has %d, the handle %d", n, len(m.Bytes()), m.Handle().Bytes)
			}
			if a := m.Ptr().Addr(); a%4096 != 0 || a == 0 {
				b.Errorf("memory of %d bytes is at %#x, not at a multiple of 4096", n, a)
			}
			if !bytes.Equal(b.bytes(m), make([]byte, n)) {
				b.Errorf("memory of %d bytes is not zeroed", n)
			}
			b.run(s, FillKernel.Bind(FillArgs{m.Ptr(), uint64(n), 0x5a}), device.Grid{Blocks: 2, Warps: 2})
			if !bytes.Equal(b.bytes(m), bytes.Repeat([]byte{0x5a}, n)) {
				b.Errorf("memory of %d bytes does not show what a kernel wrote", n)
			}
			b.must(m.Free())
			b.must(m.Free())
		}
	}
	for _, n := range []int{0, -1, -1 << 62} {
		if m, err := b.dev.Alloc(n); err == nil {
			b.memory = append(b.memory, m)
			b.Errorf("%d bytes were allocated", n)
		}
		if m, err := b.dev.AllocHost(n); err == nil {
			b.memory = append(b.memory, m)
			b.Errorf("%d bytes of the host were allocated", n)
		}
	}
}

func checkHostMemory(b *bed) {
	s := b.stream()
	for _, n := range []int{1, 4095, 4097, 1<<20 + 3} {
		for range 2 {
			m, err := b.dev.AllocHost(n)
			b.must(err)
			if a := m.Ptr().Addr(); len(m.Bytes()) != n || a%4096 != 0 || a != gpu.PtrOf(m.Bytes()).Addr() {
				b.Fatalf("%d bytes of the host: %d at %#x for the host, at %#x for kernels", n, len(m.Bytes()), gpu.PtrOf(m.Bytes()).Addr(), a)
			}
			if !bytes.Equal(b.bytes(m), make([]byte, n)) {
				b.Errorf("%d bytes of the host are not zeroed", n)
			}
			b.run(s, FillKernel.Bind(FillArgs{m.Ptr(), uint64(n), 0x5a}), one)
			if !bytes.Equal(b.bytes(m), bytes.Repeat([]byte{0x5a}, n)) {
				b.Errorf("%d bytes of the host do not show what a kernel wrote", n)
			}
			b.must(m.Free())
			b.must(m.Free())
		}
	}
}

func checkReadWrite(b *bed) {
	const n = 3<<20 + 5 // more than a device moves at a time
	pattern := make([]byte, n)
	for i := range pattern {
		pattern[i] = byte(i * 131 >> 3)
	}
	for _, m := range []device.Memory{b.alloc(n), b.keep(b.dev.AllocHost(n))} {
		b.must(m.Write(0, pattern))
		if !bytes.Equal(b.bytes(m), pattern) {
			b.Error("what was written is not what is read")
		}
		part := []byte("doorbell")
		b.must(m.Write(n-8, part))
		b.must(m.Write(7, part))
		b.must(m.Write(n, nil))
		got := make([]byte, 10)
		b.must(m.Read(6, got))
		if want := append(append([]byte{pattern[6]}, part...), pattern[15]); !bytes.Equal(got, want) {
			b.Errorf("read %x at 6, want %x", got, want)
		}
		b.must(m.Read(n-10, got))
		if want := append(slices.Clone(pattern[n-10:n-8]), part...); !bytes.Equal(got, want) {
			b.Errorf("read %x at the end, want %x", got, want)
		}
		for _, off := range []int{-1, n - 7, n + 1, 1<<63 - 1, -1 << 63} {
			if m.Write(off, part) == nil || m.Read(off, part) == nil {
				b.Errorf("8 bytes at %d of %d were written or read", off, n)
			}
		}
	}
	// Beside a kernel that runs.
	_, open := b.gated()
	w := b.memory[0]
	b.must(w.Write(100, []byte{1, 2, 3}))
	got := make([]byte, 3)
	if b.must(w.Read(100, got)); !bytes.Equal(got, []byte{1, 2, 3}) {
		b.Errorf("read %x beside a kernel, want 010203", got)
	}
	open()
}

func checkCopies(b *bed) {
	const n = 1<<16 + 3
	s, from, to, host := b.stream(), b.alloc(n), b.alloc(n), b.keep(b.dev.AllocHost(n))
	// In the order of the stream: kernel, copy, kernel, copy.
	b.must(s.Launch(FillKernel.Bind(FillArgs{from.Ptr(), n, 1}), device.Grid{Blocks: 4, Warps: 2}))
	b.must(s.Copy(to.Ptr(), from.Ptr(), n))
	b.must(s.Launch(FillKernel.Bind(FillArgs{from.Ptr(), n, 2}), one))
	b.must(s.Copy(host.Ptr().Byte(3), from.Ptr(), n-3))
	b.must(s.Fill(from.Ptr().Byte(1), 9, n-2))
	b.must(s.Copy(from.Ptr(), from.Ptr().Byte(1), 0))
	b.must(s.Fill(from.Ptr(), 9, 0))
	b.must(b.wait(s))
	if !bytes.Equal(b.bytes(to), bytes.Repeat([]byte{1}, n)) || !bytes.Equal(host.Bytes(), append(make([]byte, 3), bytes.Repeat([]byte{2}, n-3)...)) {
		b.Error("a copy did not move what the kernel before it wrote")
	}
	if got := b.bytes(from); got[0] != 2 || got[n-1] != 2 || !bytes.Equal(got[1:n-1], bytes.Repeat([]byte{9}, n-2)) {
		b.Errorf("bytes that were filled: %x .. %x", got[:4], got[n-4:])
	}
	for _, bad := range []int{-1, -1 << 63} {
		if s.Copy(to.Ptr(), from.Ptr(), bad) == nil || s.Fill(to.Ptr(), 0, bad) == nil {
			b.Errorf("%d bytes were copied or filled", bad)
		}
	}
	both := b.alloc(2 * n)
	halves := []gpu.Ptr[byte]{both.Ptr().Byte(n), both.Ptr()}
	b.must(s.Copies(halves, []gpu.Ptr[byte]{host.Ptr(), host.Ptr().Byte(3)}, []uint64{n, n - 3}))
	clear(halves) // they are the caller's again
	b.must(b.wait(s))
	if !bytes.Equal(b.bytes(both), slices.Concat(host.Bytes()[3:], make([]byte, 3), host.Bytes())) {
		b.Error("two copies at once moved other bytes")
	}
	for _, bad := range [][]uint64{{0}, {1 << 63}, {}, {1, 1}} {
		if s.Copies([]gpu.Ptr[byte]{to.Ptr()}, []gpu.Ptr[byte]{host.Ptr()}, bad) == nil {
			b.Errorf("a copy of %d bytes was queued", bad)
		}
	}
	// By way of pinned memory, in five pieces; the second begins ahead, the third reads what that wrote.
	third := b.alloc(n)
	b.must(s.Fill(from.Ptr(), 7, n))
	b.must(s.Through(to.Ptr(), from.Ptr(), n, host.Ptr(), n/4, false))
	b.must(s.Through(both.Ptr().Byte(1), from.Ptr(), n, host.Ptr(), n/4, true))
	b.must(s.Through(third.Ptr(), both.Ptr(), n, host.Ptr(), n/4, false))
	b.must(b.wait(s))
	if want := bytes.Repeat([]byte{7}, n-1); !bytes.Equal(b.bytes(to)[1:], want) || !bytes.Equal(b.bytes(third)[1:], want) {
		b.Error("copies by way of pinned memory moved other bytes")
	}
	for _, bad := range [][2]int{{-1, 1}, {1, 0}, {1, -1}} {
		if s.Through(to.Ptr(), from.Ptr(), bad[0], host.Ptr(), bad[1], false) == nil {
			b.Errorf("%d bytes in pieces of %d were queued", bad[0], bad[1])
		}
	}
	if p := gpu.Cast[uint64](host.Ptr()); s.StoreBoth(p, 1, gpu.Cast[uint64](host.Ptr().Byte(4)), 1) == nil || s.StoreBoth(gpu.Cast[uint64](host.Ptr().Byte(4)), 1, p, 1) == nil {
		b.Error("two words, one of which is not aligned, were stored")
	}
	if s.Store(gpu.Cast[uint64](host.Ptr().Byte(4)), 1) == nil {
		b.Error("a word was stored at half of one")
	}
	// A stream of copies runs beside a kernel, and its word opens it: the host does nothing.
	late, free := b.words(1), b.stream()
	word := gpu.Cast[uint64](b.alloc(8).Ptr())
	held := b.stream()
	b.must(held.Launch(GateKernel.Bind(GateArgs{gpu.Cast[uint32](word), late.Ptr, uint64(Bound)}), one))
	b.must(free.Copy(host.Ptr(), to.Ptr(), n))
	note := b.keep(b.dev.AllocHost(8))
	b.must(free.StoreBoth(gpu.Cast[uint64](note.Ptr()), 7, word, 1))
	b.must(b.wait(held))
	if got := gpu.Load(gpu.Cast[uint64](note.Ptr()), gpu.Acquire, gpu.ScopeSys); got != 7 {
		b.Errorf("the first of two words is %d when the second was seen, must be 7", got)
	}
	if late.get(0) != 0 {
		b.Error("a kernel did not see the word that a stream beside it stored")
	}
	b.must(b.wait(free))
	if !bytes.Equal(host.Bytes(), b.bytes(to)) {
		b.Error("a copy beside a kernel moved other bytes")
	}
}

func checkImport(b *bed) {
	m := b.alloc(10000)
	b.must(m.Write(9999, []byte{1}))
	p := b.keep(b.dev.Import(m.Handle()))
	if got := b.bytes(p); len(got) != 10000 || got[9999] != 1 {
		b.Error("imported memory is not the memory")
	}
	b.run(b.stream(), FillKernel.Bind(FillArgs{p.Ptr(), 10000, 7}), one)
	if !bytes.Equal(b.bytes(m), bytes.Repeat([]byte{7}, 10000)) {
		b.Error("what a kernel writes to imported memory is not seen by its owner")
	}
	for _, h := range []device.Handle{{FD: -1, Bytes: 100}, {FD: -1, Bytes: 100, Local: "something"}, {FD: m.Handle().FD, Bytes: 1 << 30, Local: m.Handle().Local}} {
		if bad, err := b.dev.Import(h); err == nil {
			b.memory = append(b.memory, bad)
			b.Errorf("handle %+v was imported", h)
		}
	}
	b.must(p.Free())
	b.must(p.Free())
	if b.bytes(m)[0] != 7 {
		b.Error("the owner's memory ended with an import of it")
	}
}

func checkOutOfMemory(b *bed) {
	for _, n := range []int{1 << 50, 1<<63 - 1} {
		m, err := b.dev.Alloc(n)
		if err == nil {
			b.memory = append(b.memory, m)
		}
		if !errors.Is(err, device.ErrOutOfMemory) {
			b.Errorf("%d bytes asked for: %v, want ErrOutOfMemory", n, err)
		}
	}
}
