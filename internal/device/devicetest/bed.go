// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
)

// bed is a device under test and what is to be given back.
type bed struct {
	testing.TB
	dev     device.Device
	memory  []device.Memory
	streams []device.Stream
	closed  bool
}

// giveBack gives back all but the device.
func (b *bed) giveBack() {
	for _, s := range b.streams {
		b.must(s.Close())
	}
	for _, m := range b.memory {
		b.must(m.Free())
	}
}

// close closes the device, once.
func (b *bed) close() {
	if !b.closed {
		b.closed = true
		b.must(b.dev.Close())
	}
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%+v", err)
	}
}

func (b *bed) keep(m device.Memory, err error) device.Memory {
	b.Helper()
	b.must(err)
	b.memory = append(b.memory, m)
	return m
}

func (b *bed) alloc(n int) device.Memory {
	b.Helper()
	return b.keep(b.dev.Alloc(n))
}

// words are words in memory of the device, for kernels to count in, or of the host.
type words struct {
	gpu.Ptr[uint32]
	b *bed
	m device.Memory
}

// words is memory of n words.
func (b *bed) words(n int) words {
	b.Helper()
	m := b.alloc(4 * n)
	return words{gpu.Cast[uint32](m.Ptr()), b, m}
}

// hostWord is a word that the host may write while a kernel looks at it.
func (b *bed) hostWord() gpu.Ptr[uint32] {
	b.Helper()
	return gpu.Cast[uint32](b.keep(b.dev.AllocHost(4)).Ptr())
}

// get reads word i, which kernels may still write.
func (w words) get(i int) uint32 {
	w.b.Helper()
	if w.m.Bytes() != nil {
		return gpu.Load(w.At(i), gpu.Acquire, gpu.ScopeSys)
	}
	var word [4]byte
	w.b.must(w.m.Read(4*i, word[:]))
	return binary.LittleEndian.Uint32(word[:])
}

// bytes is what memory holds.
func (b *bed) bytes(m device.Memory) []byte {
	b.Helper()
	all := make([]byte, m.Handle().Bytes)
	b.must(m.Read(0, all))
	if v := m.Bytes(); v != nil && !bytes.Equal(v, all) {
		b.Errorf("memory of %d bytes is not what it is read to be", len(v))
	}
	return all
}

func (b *bed) stream() device.Stream {
	s := b.dev.NewStream()
	b.streams = append(b.streams, s)
	return s
}

// wait waits for a stream, within the bound.
func (b *bed) wait(s device.Stream) error {
	ctx, cancel := context.WithTimeout(b.Context(), Bound)
	defer cancel()
	err := s.Wait(ctx)
	if ctx.Err() != nil {
		b.Helper()
		b.Fatalf("the stream did not end within %v: %v", Bound, err)
	}
	return err
}

// run launches and waits.
func (b *bed) run(s device.Stream, c gpu.Call, g device.Grid) {
	b.Helper()
	b.must(s.Launch(c, g))
	b.must(b.wait(s))
}

var one = device.Grid{Blocks: 1, Warps: 1}
