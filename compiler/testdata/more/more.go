// Package more has what is not device code either.
package more

import (
	"errors"

	"github.com/doorbell-net/doorbell/gpu"
)

type Args struct {
	Out gpu.Ptr[uint32]
	N   int32
	F   float64
}

func one() uint32 { return 1 }
func two() uint32 { return 2 }

//gpu:kernel
func Functions(t gpu.Thread, a Args) {
	table := [2]func() uint32{one, two}             // want: a function value kept in a variable, in device code: call it, or pass it to a function that is called directly
	a.Out.Store(table[a.N&1]())                     // want: a call of a function that is not known at compile time: call it by name, or pass it to a function that is called directly
	f := one                                        // want: a function value kept in a variable, in device code: call it, or pass it to a function that is called directly
	g := func() uint32 { return f() + uint32(a.N) } // want: a function value kept in a variable, in device code: call it, or pass it to a function that is called directly
	h := func() uint32 { return g() }               // want: a call of a function that is not known at compile time: call it by name, or pass it to a function that is called directly
	a.Out.Store(h())
	var later func(uint32) uint32                           // want: a value of type func(uint32) uint32 in device code: call functions directly, or pass them to functions that are called directly
	later = func(v uint32) uint32 { return v + later(v-1) } // want: a function value kept in a variable, in device code: call it, or pass it to a function that is called directly
	a.Out.Store(later(1))                                   // want: a call of a function that is not known at compile time: call it by name, or pass it to a function that is called directly
}

func upTo(n int32) func(yield func(int32) bool) { // want: a value of type (func(yield func(int32) bool)) in device code: call functions directly, or pass them to functions that are called directly
	return func(yield func(int32) bool) { // want: a value of type func(yield func(int32) bool) in device code: call functions directly, or pass them to functions that are called directly
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

//gpu:kernel
func Iterators(t gpu.Thread, a Args) {
	for i := range upTo(a.N) { // want: a call of a function that is not known at compile time: call it by name, or pass it to a function that is called directly
		a.Out.At(int(i)).Store(1)
	}
}

//gpu:kernel
func Interfaces(t gpu.Thread, a Args) {
	if n, ok := any(a.N).(int32); ok { // want: an interface in device code: use a concrete type or a type parameter
		a.Out.Store(uint32(n))
	}
	switch any(a.N).(type) { // want: an interface in device code: use a concrete type or a type parameter
	case int32: // want: an interface in device code: use a concrete type or a type parameter
		a.Out.Store(2)
	}
	err := errors.New("no") // want: call of errors.New, which is not device code: leave numbers in memory for the host, or panic with a constant
	if err != nil {         // want: a value of type error in device code: use a concrete type or a type parameter
		a.Out.Store(3)
	}
}

//gpu:kernel
func Texts(t gpu.Thread, a Args) {
	s := "abc" // want: a value of type string in device code: a string is for panics alone; use numbers
	if a.N > 1 {
		s += "d" // want: operator + on string in device code: a string is for panics alone; use numbers
	}
	a.Out.Store(uint32(len(s))) // want: len of a string in device code: a string is for panics alone; use numbers
	a.Out.Store(uint32(s[a.N])) // want: indexing a string in device code: a string is for panics alone; use numbers
	b := []byte(s)              // want: a conversion from string to []byte in device code: a string is for panics alone; use numbers
	a.Out.Store(uint32(b[0]))
	a.Out.Store(uint32(s[1:][0])) // want: ing a string in device code: a string is for panics alone; use numbers
}

//gpu:kernel
func Others(t gpu.Thread, a Args) {
	c := complex(a.F, 1)         // want: complex numbers in device code: use two floats
	a.Out.Store(uint32(real(c))) // want: complex numbers in device code: use two floats
	v := [4]uint32{1}
	clear(v[:]) // want: clear in device code: write a loop, or assign an array of zeros
	a.Out.Store(v[0])
	select {} // want: a channel in device code: use gpu.Store and gpu.Load with an order
}

//gpu:kernel
func Recovers(t gpu.Thread, a Args) {
	func() {
		if recover() != nil { // want: recover in device code: a kernel that panics is over
			a.Out.Store(1)
		}
	}()
	_ = new(uint32)
	p := new(uint32) // want: a value would have to live on a heap, which device code has none of: its address is stored
	keep(p)
	a.Out.Store(*p)
}

var kept *uint32

func keep(p *uint32) { kept = p } // want: package variable kept in device code, which is no table of constants: it is a *uint32
