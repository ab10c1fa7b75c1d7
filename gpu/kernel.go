// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"slices"
	"sync"
)

// Kernel binds a Go function and its PTX. A is the kernel's struct of arguments, of fixed layout.
//
// The values are made by the compiler, in a file beside the kernels, one line each.
type Kernel[A any] struct {
	code     *Code
	fn       func(Thread, A)
	pool     *sync.Pool
	variants []variant[A]
}

// variant is a kernel's code for some values of its arguments.
type variant[A any] struct {
	code *Code
	fits func(*A) bool
}

// Code is a kernel as a GPU runs it. There is one for each call of NewKernel, so that a device knows it by its address.
type Code struct {
	Name string // of the kernel: its entry in PTX, and in messages
	PTX  string // the module that it is part of; empty for a kernel that was not compiled

	Cubins []Cubin // that module as compiled beforehand, so that nobody waits for it

	Variants []*Code // of the kernel, for some values of its arguments; a split is none
}

// Cubin is a module of machine code.
type Cubin struct {
	Arch int    // ten times the compute capability that it is for: 90 for 9.0
	Code string // an ELF file
}

// Cubin is the machine code for a GPU of compute capability major.minor, empty if there is none: that of the same major
// and the highest minor that is not above (CUDA C++ programming guide, "Binary Compatibility").
func (c *Code) Cubin(major, minor int) string {
	best := Cubin{Arch: 10*major - 1}
	for _, b := range c.Cubins {
		if b.Arch > best.Arch && b.Arch <= 10*major+minor {
			best = b
		}
	}
	return best.Code
}

// NewKernel is called by generated code. ptx is empty for a kernel that was not compiled: it runs on the software
// device only. cubins are of ptx and nothing else.
func NewKernel[A any](name string, fn func(Thread, A), ptx string, cubins ...Cubin) Kernel[A] {
	k := Kernel[A]{code: &Code{Name: name, PTX: ptx, Cubins: cubins}, fn: fn, pool: new(sync.Pool)}
	code, pool := k.code, k.pool
	k.pool.New = func() any { return &bound[A]{fn: fn, pool: pool} }
	register(code)
	return k
}

// Variant is called by generated code: the kernel has another entry in its module, which launches take whose arguments
// fit. It does the same, and knows some of them beforehand. Of several that fit the first is taken, and a software device
// runs the same Go function for all.
func (k Kernel[A]) Variant(name string, fits func(*A) bool) Kernel[A] {
	k = k.Split(name, fits)
	k.code.Variants = append(k.code.Variants, k.variants[len(k.variants)-1].code)
	return k
}

// Split is Variant for an entry that the kernel itself cannot stand in for: it is for arguments of another kind.
func (k Kernel[A]) Split(name string, fits func(*A) bool) Kernel[A] {
	code := &Code{Name: name, PTX: k.code.PTX, Cubins: k.code.Cubins}
	k.variants = append(k.variants, variant[A]{code, fits})
	register(code)
	return k
}

func register(code *Code) {
	if code.PTX == "" {
		return
	}
	codes.Lock()
	codes.all = append(codes.all, code)
	codes.Unlock()
}

var codes struct {
	sync.Mutex
	all []*Code
}

// Codes lists the kernels of this program that have PTX, in the order in which they were made: package variables are
// there before main starts. A device that has to load code does so before anything runs on it: later, the load may wait
// for a kernel that waits for another.
func Codes() []*Code {
	codes.Lock()
	defer codes.Unlock()
	return slices.Clone(codes.all)
}

// Name is the kernel's name in its PTX and in messages.
func (k Kernel[A]) Name() string { return k.code.Name }

// Entries are the names in its PTX that launches of it take: its own, and those of Variant and Split.
func (k Kernel[A]) Entries() []string {
	names := []string{k.code.Name}
	for _, v := range k.variants {
		names = append(names, v.code.Name)
	}
	return names
}

// PTX is the kernel's PTX module, empty if there is none.
func (k Kernel[A]) PTX() string { return k.code.PTX }

// Code is the kernel as a GPU runs it.
func (k Kernel[A]) Code() *Code { return k.code }

// Bind copies the arguments for one launch. The result is used once: the device releases it when the launch ends.
func (k Kernel[A]) Bind(args A) Call {
	b := k.pool.Get().(*bound[A])
	b.args, b.code = args, k.code
	for _, v := range k.variants {
		if v.fits(&b.args) {
			b.code = v.code
			break
		}
	}
	return b
}

// Call is a kernel with its arguments, as a device runs it.
type Call interface {
	// Name is the kernel's name, or its variant's.
	Name() string
	// Code is the kernel as a GPU runs it.
	Code() *Code
	// Args are the bytes of the struct of arguments, in Go's layout. They stay in place until Release.
	Args() []byte
	// Run runs one thread.
	Run(Thread)
	// Release gives the arguments back. Nothing of the call may be used afterwards.
	Release()
}

type bound[A any] struct {
	code *Code
	fn   func(Thread, A)
	args A
	pool *sync.Pool
}

func (b *bound[A]) Name() string { return b.code.Name }
func (b *bound[A]) Code() *Code  { return b.code }
func (b *bound[A]) Args() []byte { return bytesOf(&b.args) }
func (b *bound[A]) Run(t Thread) { b.fn(t, b.args) }
func (b *bound[A]) Release() {
	var none A
	b.args = none
	b.pool.Put(b)
}
