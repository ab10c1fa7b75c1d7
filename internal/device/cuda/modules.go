// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// module is code that the driver has loaded: a cubin, or PTX that it has compiled for the card.
type module struct {
	handle uintptr
	err    error
}

// kernel is an entry of a module.
type kernel struct {
	name          string
	handle        uintptr
	registers     int // a thread
	local, shared int // bytes: a thread's in local memory, a block's in shared memory
	maxWarps      int // in a block
	err           error
	blocks        [device.MaxWarpsPerBlock + 1]atomic.Int32 // by warps: blocks resident on a multiprocessor, plus 1; 0 is not known
}

const (
	attrMaxThreads  = 0 // CU_FUNC_ATTRIBUTE_*
	attrSharedBytes = 1
	attrLocalBytes  = 3
	attrRegisters   = 4
)

// kernel finds a kernel that is loaded, or loads it if nothing runs.
func (d *Device) kernel(code *gpu.Code) (*kernel, error) {
	c := d.card
	if k := (*c.kernels.Load())[code]; k != nil {
		return k, k.err
	}
	if code == nil || code.PTX == "" {
		name := "?"
		if code != nil {
			name = code.Name
		}
		return nil, fmt.Errorf("kernel %s was not compiled for a GPU: run go generate in its folder", name)
	}
	if err := c.quiet("load kernel "+code.Name+", which is none of a package's variables", d.opt.Patience, &waiter{progress: &d.progress}); err != nil {
		return nil, err
	}
	defer c.gate.Unlock()
	c.load([]*gpu.Code{code})
	k := (*c.kernels.Load())[code]
	return k, k.err
}

// loadAll loads what this program has that is not loaded yet: later, a load might wait for a kernel that waits for another.
func (d *Device) loadAll() {
	c := d.card
	var missing []*gpu.Code
	for _, code := range gpu.Codes() {
		if (*c.kernels.Load())[code] == nil {
			missing = append(missing, code)
		}
	}
	if len(missing) == 0 {
		return
	}
	// Where kernels of other ranks run already, the launch that needs one loads it or says why not.
	if err := c.quiet("load kernels", 0, &waiter{}); err != nil {
		d.opt.Log.Debug("kernels are not loaded yet", "gpu", c.index, "error", err)
		return
	}
	defer c.gate.Unlock()
	start := time.Now()
	c.load(missing)
	d.opt.Log.Debug("kernels loaded", "gpu", c.index, "kernels", len(missing), "modules", len(c.modules), "took", time.Since(start))
}

// load loads kernels. gate is held for writing, and nothing runs. A kernel that cannot be loaded keeps its error.
func (c *card) load(codes []*gpu.Code) {
	next := maps.Clone(*c.kernels.Load())
	for range 2 { // the second time what the driver refused as a cubin
		c.compileAll(codes)
	}
	for _, code := range codes {
		if next[code] != nil {
			continue
		}
		m := c.modules[c.image(code)]
		if m.err != nil {
			next[code] = &kernel{name: code.Name, err: m.err}
		} else {
			next[code] = c.find(m, code.Name)
		}
		if err := next[code].err; err != nil {
			c.log.Warn("kernel cannot be loaded", "gpu", c.index, "kernel", code.Name, "error", err)
		}
	}
	c.holdLocal(next)
	c.kernels.Store(&next)
}

// image is what is loaded for a kernel: the cubin of its package that is for this card, which takes no time, else PTX. A
// driver that is older than the cubin refuses it (cubins are compatible within a major version of CUDA), and compiles.
func (c *card) image(code *gpu.Code) string {
	cubin := code.Cubin(c.caps.Major, c.caps.Minor)
	if m := c.modules[cubin]; cubin == "" || m != nil && m.err != nil {
		return unit(code.PTX, code.Name)
	}
	return cubin
}

// compileAll compiles the modules that are not there yet, each by a thread of its own, and then loads them.
func (c *card) compileAll(codes []*gpu.Code) {
	type unloaded struct {
		kernel, text string
		code         []byte
		err          error
	}
	var wg sync.WaitGroup
	var all []*unloaded
	for _, code := range codes {
		u := &unloaded{kernel: code.Name, text: c.image(code)}
		if c.modules[u.text] != nil {
			continue
		}
		c.modules[u.text] = new(module)
		all = append(all, u)
		wg.Go(func() { u.code, u.err = c.link(u.kernel, u.text) })
	}
	wg.Wait()
	for _, u := range all {
		if u.err != nil {
			c.modules[u.text].err = u.err
		} else {
			c.modules[u.text] = c.loadModule(u.kernel, u.code)
		}
	}
}

// find looks a kernel up in its module.
func (c *card) find(m *module, name string) *kernel {
	k := &kernel{name: name}
	out := new(outs)
	text := append([]byte(name), 0)
	r := c.do(cuModuleGetFunction, out.at(0), m.handle, ffi.Addr(&text[0]))
	runtime.KeepAlive(text)
	if r != success {
		k.err = c.fault(cuModuleGetFunction, r, "kernel %s: its code has no entry of that name", name)
		return k
	}
	k.handle = out.addr(0)
	threads := 0
	for _, a := range []struct {
		number uintptr
		value  *int
	}{{attrMaxThreads, &threads}, {attrSharedBytes, &k.shared}, {attrLocalBytes, &k.local}, {attrRegisters, &k.registers}} {
		out[1] = 0
		if r := c.do(cuFuncGetAttribute, out.at(1), a.number, k.handle); r != success {
			k.err = c.fault(cuFuncGetAttribute, r, "kernel %s, attribute %d", name, a.number)
			return k
		}
		*a.value = int(out.int32(1))
	}
	k.maxWarps = min(threads/lanes, device.MaxWarpsPerBlock)
	return k
}

// Describe says what a kernel that is loaded takes.
func (d *Device) Describe(code *gpu.Code) string {
	k, err := d.kernel(code)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d registers and %d bytes of local memory a thread, %d bytes of shared memory a block, %d warps a block at most",
		k.registers, k.local, k.shared, k.maxWarps)
}

// share is how many multiprocessors this rank may count on.
func (d *Device) share() int { return max(d.card.caps.SMs/d.opt.Ranks, 1) }

// MaxCooperativeWarps is what the rank's share of the multiprocessors holds of a kernel that needs nothing else.
func (d *Device) MaxCooperativeWarps() int { return d.share() * d.card.caps.WarpsPerSM }

// CooperativeBlocks is device.Device's: the driver's count for one multiprocessor, times the rank's share of them. It is
// that of the variant that takes most, since the arguments are not known yet.
func (d *Device) CooperativeBlocks(code *gpu.Code, warps int) (int, error) {
	if warps < 1 || warps > device.MaxWarpsPerBlock {
		return 0, fmt.Errorf("cooperative blocks: %d warps per block asked for, 1 to %d are accepted", warps, device.MaxWarpsPerBlock)
	}
	least, err := d.residentCode(code, warps)
	if err != nil {
		return 0, err
	}
	for _, v := range code.Variants {
		n, err := d.residentCode(v, warps)
		if err != nil {
			return 0, err
		}
		least = min(least, n)
	}
	return least, nil
}

// residentCode is CooperativeBlocks of one entry, which is loaded if it was not.
func (d *Device) residentCode(code *gpu.Code, warps int) (int, error) {
	k, err := d.kernel(code)
	if err != nil {
		return 0, fmt.Errorf("cooperative blocks: %w", err)
	}
	if warps > k.maxWarps {
		return 0, nil
	}
	return d.resident(k, warps)
}

// resident is CooperativeBlocks of a kernel that is loaded. The driver computes it and waits for nothing.
func (d *Device) resident(k *kernel, warps int) (int, error) {
	n := k.blocks[warps].Load()
	if n == 0 {
		out := new(outs)
		r := d.card.do(cuOccupancyMaxActiveBlocksPerMultiprocessor, out.at(0), k.handle, uintptr(warps*lanes), 0)
		if r != success {
			return 0, d.card.fault(cuOccupancyMaxActiveBlocksPerMultiprocessor, r, "kernel %s, %d warps", k.name, warps)
		}
		if n = out.int32(0) + 1; n < 1 {
			return 0, errors.New("cooperative blocks: the driver counts fewer than none")
		}
		k.blocks[warps].Store(n)
	}
	return int(n-1) * d.share(), nil
}
