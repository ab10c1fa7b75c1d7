// SPDX-License-Identifier: Apache-2.0

package cudatest

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// bind makes a call of a kernel's Go function from the arguments that the driver was given.
type bind func(args []byte) gpu.Call

// Kernel is a kernel's Go function, for its names in PTX.
type Kernel struct {
	names []string
	bind  bind
}

// Of is a kernel with all its entries.
func Of[A any](k gpu.Kernel[A]) Kernel {
	return Kernel{k.Entries(), func(args []byte) gpu.Call {
		a := new(A)
		to := gpu.Slice(gpu.Cast[byte](gpu.PtrTo(a)), int(gpu.SizeOf[A]()))
		if len(args) != len(to) {
			panic(fmt.Sprintf("kernel %s: its PTX takes %d bytes of arguments, its Go struct has %d", k.Name(), len(args), len(to)))
		}
		copy(to, args)
		return k.Bind(*a)
	}}
}

// launch is a kernel that came to the head of its stream.
type launch struct {
	id   int
	call gpu.Call
	grid device.Grid
}

// takeMS is how long take waits for a kernel.
const takeMS = 20

// take waits a little for a kernel, as the double hands it out: its number, blocks, threads, whether it is cooperative, bytes of
// arguments, name and arguments.
func (d *Driver) take() (k launch, ok bool) {
	const name, args, all = 40, 168, 168 + 4096
	b := make([]byte, all)
	if d.Ask("double_take", ffi.Addr(&b[0]), takeMS) != 0 {
		return k, false
	}
	word := func(i int) int { return int(binary.LittleEndian.Uint64(b[8*i:])) }
	kernel, _, _ := bytes.Cut(b[name:args], []byte{0})
	given := b[args : args+word(4)]
	if d.Launched != nil {
		d.Launched(string(kernel), given)
	}
	of := d.kernels[string(kernel)]
	if of == nil {
		panic(fmt.Sprintf("kernel %s was launched, and the test has no function for it", kernel))
	}
	return launch{word(0), of(given), device.Grid{Blocks: word(1), Warps: word(2) / 32, Cooperative: word(3) != 0}}, true
}

// serve runs what comes to the head of a stream, until the end.
func (d *Driver) serve() {
	for {
		select {
		case <-d.stop:
			return
		default:
		}
		k, ok := d.take()
		if !ok {
			continue
		}
		d.running.Go(func() {
			code := 0
			if err := d.run(k); err != nil {
				d.Log(err)
				code = 719 // CUDA_ERROR_LAUNCH_FAILED
			}
			d.Ask("double_done", k.id, code)
		})
	}
}
