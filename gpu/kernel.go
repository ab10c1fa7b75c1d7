// SPDX-License-Identifier: Apache-2.0

package gpu

import "sync"

// Kernel binds a Go function and its PTX. A is the kernel's struct of arguments, of fixed layout.
//
// The values are made by the compiler, in a file beside the kernels, one line each.
type Kernel[A any] struct {
	name string
	fn   func(Thread, A)
	ptx  string
	pool *sync.Pool
}

// NewKernel is called by generated code. ptx is empty for a kernel that was not compiled: it runs on the software
// device only.
func NewKernel[A any](name string, fn func(Thread, A), ptx string) Kernel[A] {
	k := Kernel[A]{name: name, fn: fn, ptx: ptx, pool: new(sync.Pool)}
	pool := k.pool
	k.pool.New = func() any { return &bound[A]{name: name, fn: fn, pool: pool} }
	return k
}

// Name is the kernel's name in its PTX and in messages.
func (k Kernel[A]) Name() string { return k.name }

// PTX is the kernel's PTX module, empty if there is none.
func (k Kernel[A]) PTX() string { return k.ptx }

// Bind copies the arguments for one launch. The result is used once: the device releases it when the launch ends.
func (k Kernel[A]) Bind(args A) Call {
	b := k.pool.Get().(*bound[A])
	b.args = args
	return b
}

// Call is a kernel with its arguments, as a device runs it.
type Call interface {
	// Name is the kernel's name.
	Name() string
	// Run runs one thread.
	Run(Thread)
	// Release gives the arguments back. Nothing of the call may be used afterwards.
	Release()
}

type bound[A any] struct {
	name string
	fn   func(Thread, A)
	args A
	pool *sync.Pool
}

func (b *bound[A]) Name() string { return b.name }
func (b *bound[A]) Run(t Thread) { b.fn(t, b.args) }
func (b *bound[A]) Release() {
	var none A
	b.args = none
	b.pool.Put(b)
}
