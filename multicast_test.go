// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/env"
)

// fabric is a double of what GPUs' multicast objects are in: steps out of turn, and what is left, are errors.
type fabric struct {
	testing.TB
	ranks int
	mu    sync.Mutex
	live  int
	made  map[int]*object // by descriptor, a number of its own here
	fail  string          // the step that fails, of rank failRank
	bad   int
}

type object struct {
	devices, bytes, joined, bound int
	at                            [4096]byte
}

// multicaster is a device of the fabric.
type multicaster struct {
	device.Device
	f    *fabric
	rank int
}

// objectPart is a rank's part.
type objectPart struct {
	*multicaster
	o  *object
	fd int
}

func (m *multicaster) MayMulticast() error { return nil }

func (m *multicaster) step(name string) error {
	if m.f.fail == name && m.f.bad == m.rank {
		return errors.New(name + " fails")
	}
	return nil
}

func (m *multicaster) NewMulticast(devices, bytes int) (device.Multicast, error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if err := m.step("make"); err != nil {
		return nil, err
	}
	o := &object{devices: devices, bytes: bytes}
	m.f.made[m.rank] = o
	m.f.live++
	return &objectPart{m, o, -1}, nil
}

func (m *multicaster) ImportMulticast(h device.Handle) (device.Multicast, error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	o := m.f.made[m.rank/m.f.ranks*m.f.ranks]
	if err := m.step("import"); err != nil {
		return nil, err
	}
	if o == nil || o.bytes != h.Bytes {
		return nil, fmt.Errorf("no object of %d bytes was made", h.Bytes)
	}
	m.f.live++
	return &objectPart{m, o, -1}, nil
}

func (p *objectPart) Handle() device.Handle { return device.Handle{FD: -1, Bytes: p.o.bytes} }

func (p *objectPart) Join() error {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	p.o.joined++
	return p.step("join")
}

func (p *objectPart) Bind(device.Memory) error {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if p.o.joined != p.o.devices {
		p.f.Errorf("rank %d binds when %d of %d have joined", p.rank, p.o.joined, p.o.devices)
	}
	p.o.bound++
	return p.step("bind")
}

func (p *objectPart) Ptr() gpu.Ptr[byte] { return gpu.PtrOf(p.o.at[:]) }

func (p *objectPart) Free() error {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	p.f.live--
	return nil
}

// register has each rank register a part of a buffer, and says what the windows' entries have as the address of all.
func (f *fabric) register(gpuOf func(rank int) string, take func(c *Comm) *Buffer) (at []gpu.Ptr[byte], errs []error) {
	f.Setenv(env.Far.Name(), "1")
	cs, err := Local(4, Options{RanksPerNode: f.ranks, Timeout: 10 * time.Second})
	if err != nil {
		f.Fatal(err)
	}
	at, errs = make([]gpu.Ptr[byte], 4), make([]error, 4)
	var wg sync.WaitGroup
	for r, c := range cs {
		c.dev, c.infos.dev = &multicaster{c.dev, f, r}, c.dev
		c.gpus = nil
		for r := range cs {
			c.gpus = append(c.gpus, gpuOf(r))
		}
		wg.Go(func() {
			var w *Window
			if w, errs[r] = c.Register(context.Background(), take(c)); errs[r] == nil {
				at[r] = gpu.PtrTo(&w.dev.Info.Raw().Multimem).Load()
				errs[r] = w.Close()
			}
		})
	}
	wg.Wait()
	for _, c := range cs {
		if err := c.Close(); err != nil {
			f.Error(err)
		}
	}
	if f.live != 0 {
		f.Errorf("%d parts of multicast objects are left", f.live)
	}
	return at, errs
}

func own(rank int) string { return fmt.Sprint("GPU ", rank) }

func part(c *Comm) *Buffer {
	b, err := c.Alloc(4096 + 64*c.rank)
	if err != nil {
		panic(err)
	}
	b, err = b.Slice(256, 1024)
	if err != nil {
		panic(err)
	}
	return b
}

// TestSpread: the ranks of each LSA team take the steps in turn, and each window's entry has the team's address, at its
// offset. Where a rank's part cannot be one, none has, and nothing is left; a step that fails on one rank fails on all.
func TestSpread(t *testing.T) {
	f := &fabric{TB: t, ranks: 2, made: map[int]*object{}}
	at, errs := f.register(own, part)
	for r := range at {
		o := f.made[r/2*2]
		if errs[r] != nil || o == nil || at[r] != gpu.PtrOf(o.at[256:]) || o.bound != 2 || o.bytes != 4096+64*(r/2*2) {
			t.Errorf("rank %d: %v, address %#x of %+v", r, errs[r], at[r].Addr(), o)
		}
	}
	for name, c := range map[string]struct {
		gpuOf func(int) string
		take  func(*Comm) *Buffer
	}{
		"two ranks on a GPU": {func(rank int) string { return fmt.Sprint("GPU ", max(rank, 1)) }, part},
		"memory of the host": {own, func(c *Comm) *Buffer {
			if c.rank != 3 {
				return part(c)
			}
			b, _ := c.AllocHost(2048)
			return b
		}},
		"another offset": {own, func(c *Comm) *Buffer {
			if c.rank != 3 {
				return part(c)
			}
			b, _ := c.Alloc(2048)
			return b
		}},
	} {
		f := &fabric{TB: t, ranks: 2, made: map[int]*object{}}
		at, errs := f.register(c.gpuOf, c.take)
		for r := range at {
			if errs[r] != nil || !at[r].IsNil() {
				t.Errorf("%s: rank %d: %v, address %#x", name, r, errs[r], at[r].Addr())
			}
		}
	}
	for _, step := range []string{"make", "import", "join", "bind"} {
		bad := 2
		if step == "import" {
			bad = 3 // who did not make it
		}
		f := &fabric{TB: t, ranks: 2, made: map[int]*object{}, fail: step, bad: bad}
		_, errs := f.register(own, part)
		for r, err := range errs {
			if err == nil || !strings.Contains(err.Error(), step+" fails") {
				t.Errorf("%s fails on rank %d: rank %d has %v", step, bad, r, err)
			}
		}
	}
}

// TestMultimemAsked: what keeps the hardware's from being there is said.
func TestMultimemAsked(t *testing.T) {
	f := &fabric{TB: t, ranks: 2}
	c := &Comm{dev: &multicaster{weakDevice{}, f, 0}, lsaSize: 2, gpus: []string{"a", "a"}}
	err := c.multimem(Needs{Multimem: true})
	if !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), "2 ranks of an LSA team are on 1 GPUs") {
		t.Errorf("two ranks on a GPU: %v", err)
	}
	c.gpus[1] = "b"
	if err := c.multimem(Needs{Multimem: true}); err != nil {
		t.Errorf("a GPU each: %v", err)
	}
}
