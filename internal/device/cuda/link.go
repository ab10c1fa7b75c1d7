// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"

	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

const (
	jitInputPTX      = 1 // CU_JIT_INPUT_PTX
	jitErrorLog      = 5 // CU_JIT_ERROR_LOG_BUFFER
	jitErrorLogBytes = 6
	jitLogBytes      = 8 << 10
)

// link has the driver's linker compile PTX; what is compiled already stays as it is. Of several threads that load PTX the
// driver lets one compile at a time; its linker it lets all: on an H200 with 16 cores 14 modules took 0.27 s by the linker,
// and 1.25 s loaded as PTX. A link is one thread's, and nothing is loaded meanwhile: otherwise the driver (580) was seen to
// corrupt its heap.
func (c *card) link(kernel, ptx string) ([]byte, error) {
	if strings.HasPrefix(ptx, elf) {
		return []byte(ptx), nil
	}
	ptx, err := c.bindHosts(ptx)
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out := new(outs)
	log := make([]byte, jitLogBytes)
	options := &[2]uint32{jitErrorLog, jitErrorLogBytes}
	values := &[2]uintptr{ffi.Addr(&log[0]), jitLogBytes}
	fail := func(f function, r result) ([]byte, error) {
		detail := c.moduleOf(kernel, ptx)
		if said := strings.TrimSpace(ffi.String(ffi.Addr(&log[0]))); said != "" {
			detail += "; " + said
		}
		return nil, c.fault(f, r, "%s", detail)
	}
	if r := c.do(cuLinkCreate, 2, ffi.Addr(&options[0]), ffi.Addr(&values[0]), out.at(0)); r != success {
		return fail(cuLinkCreate, r)
	}
	link := out.addr(0)
	defer func() { // it writes to the log, and its size, to the last
		c.do(cuLinkDestroy, link)
		runtime.KeepAlive(options)
		runtime.KeepAlive(values)
		runtime.KeepAlive(log)
	}()
	text, name := append([]byte(ptx), 0), append([]byte(kernel), 0)
	r := c.do(cuLinkAddData, link, jitInputPTX, ffi.Addr(&text[0]), uintptr(len(text)), ffi.Addr(&name[0]), 0, 0, 0)
	runtime.KeepAlive(text)
	runtime.KeepAlive(name)
	if r != success {
		return fail(cuLinkAddData, r)
	}
	if r := c.do(cuLinkComplete, link, out.at(1), out.at(2)); r != success {
		return fail(cuLinkComplete, r)
	}
	return bytes.Clone(ffi.Bytes(out.addr(1), int(out.bytes(2)))), nil // the link's own goes with it
}

// loadModule loads code that is compiled.
func (c *card) loadModule(kernel string, code []byte) *module {
	out := new(outs)
	r := c.do(cuModuleLoadDataEx, out.at(0), ffi.Addr(&code[0]), 0, 0, 0)
	runtime.KeepAlive(code)
	if r != success {
		return &module{err: c.fault(cuModuleLoadDataEx, r, "%s", c.moduleOf(kernel, ""))}
	}
	return &module{handle: out.addr(0)}
}

// moduleOf says whose module it is, and what it is for, if its text says that.
func (c *card) moduleOf(kernel, ptx string) string {
	if _, target, ok := strings.Cut(ptx, "\n.target "); ok {
		target, _, _ = strings.Cut(target, "\n")
		kernel += " for " + target
	}
	return fmt.Sprintf("module of kernel %s, GPU of compute capability %d.%d", kernel, c.caps.Major, c.caps.Minor)
}
