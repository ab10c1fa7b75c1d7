// Package refused has what is not device code. A line's want comment is in what gpuc says of it.
package refused

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
)

type Args struct {
	Out gpu.Ptr[uint32]
	Ptr gpu.Ptr[gpu.Ptr[uint32]]
	N   int32
	F   float64
}

var (
	written  = [4]uint32{1, 2, 3, 4}
	computed = [4]uint32{1, uint32(len(written)), uint32(time.Now().Second()), 4}
	Exported = [4]uint32{1, 2, 3, 4}
	kept     = [4]uint32{1, 2, 3, 4}
	keeper   = &kept
	taken    = [4]uint32{1, 2, 3, 4}
	inside   [2]pair
	links    [2]*uint32
	large    = [64<<10 + 1]uint8{1}
)

type pair struct{ u, v uint32 }

func write(i int) {
	written[i] = 5
	inside[i].v = 6
	keeper[i] = 7
}

var mu sync.Mutex

var cell gpu.Shared[uint32]

type shape interface{ area() uint32 }
type square struct{ side uint32 }

func (s square) area() uint32 { return s.side * s.side }

//gpu:kernel
func Heap(t gpu.Thread, a Args) {
	s := make([]uint32, a.N) // want: make in device code, which has no heap
	s = append(s, 1)         // want: append in device code
	m := map[int32]int32{}   // want: a map in device code
	m[1] = 2                 // want: a map in device code
	a.Out.Store(s[0])
	c := make(chan int) // want: a channel in device code
	c <- 1              // want: a channel in device code
	go func() {}()      // want: a go statement in device code
	defer t.SyncWarp()  // want: defer in device code
	println(a.N)        // want: println in device code
}

//gpu:kernel
func Dynamic(t gpu.Thread, a Args) {
	var s shape = square{2}
	a.Out.Store(s.area()) // want: a call of area through an interface
	f := one
	if a.N > 1 {
		f = two
	}
	a.Out.Store(f()) // want: a call of a function that is not known at compile time
	a.Out.Store(fact(uint32(a.N)))
	for _, r := range "abc" { // want: a range over a map or string
		a.Out.Store(uint32(r))
	}
}

func one() uint32 { return 1 }
func two() uint32 { return 2 }

func fact(n uint32) uint32 {
	if n < 2 {
		return 1
	}
	return n * fact(n-1) // want: a recursive call of fact
}

//gpu:kernel
func Outside(t gpu.Thread, a Args) {
	a.Out.Store(written[a.N&3])                           // want: package variable written in device code, which is no table of constants: it is written at testdata/refused/refused.go:
	a.Out.Store(computed[a.N&3])                          // want: package variable computed in device code, which is no table of constants: it is made of more than constants at
	a.Out.Store(Exported[a.N&3])                          // want: package variable Exported in device code, which is no table of constants: it is exported, so another package may write it
	a.Out.Store(kept[a.N&3])                              // want: package variable kept in device code, which is no table of constants: its address is kept at
	a.Out.Store(gpu.PtrTo(&taken[0]).At(int(a.N)).Load()) // want: package variable taken in device code, which is no table of constants: its address is taken at
	a.Out.Store(inside[a.N&1].v)                          // want: package variable inside in device code, which is no table of constants: it is written at
	a.Out.Store(uint32(*links[a.N&1]))                    // want: package variable links in device code, which is no table of constants: it is a [2]*uint32, and integers, floats, bools
	a.Out.Store(uint32(large[a.N]))                       // want: package variables of the kernels take 65552 bytes with large: constant memory has 65536
	mu.Lock()                                             // want: call of (*sync.Mutex).Lock, which is not device code: use SyncBlock
	var w uint32
	atomic.AddUint32(&w, 1)            // want: call of sync/atomic.AddUint32, which is not device code: use gpu.Load, gpu.Store
	time.Sleep(1)                      // want: call of time.Sleep, which is not device code: use Thread.Clock and Thread.Idle
	fmt.Println(a.N)                   // want: call of fmt.Println, which is not device code
	a.Out.Store(uint32(math.Sin(a.F))) // want: call of math.Sin, which has no instruction
	deep(a)
}

func deep(a Args) { deeper(a) }
func deeper(a Args) {
	mu.Unlock() // want: call of (*sync.Mutex).Unlock
}

//gpu:kernel
func Orders(t gpu.Thread, a Args) {
	o := gpu.Relaxed
	if a.N > 0 {
		o = gpu.Acquire
	}
	a.Out.Store(gpu.Load(a.Out, o, gpu.ScopeSys))           // want: the order of gpu.Load is not a constant
	gpu.Store(a.Out, 1, gpu.Relaxed, gpu.Scope(a.N))        // want: the scope of gpu.Store is not a constant
	gpu.Store(a.Out, 1, gpu.Acquire, gpu.ScopeSys)          // want: gpu.Store with order gpu.Acquire: accepted are [gpu.Relaxed gpu.Release gpu.Phased]
	a.Out.Store(gpu.Load(a.Out, gpu.Release, gpu.ScopeSys)) // want: gpu.Load with order gpu.Release: accepted are [gpu.Relaxed gpu.Acquire]
	gpu.AtomicAdd(a.Out, 1, gpu.Phased, gpu.ScopeSys)       // want: gpu.AtomicAdd with order gpu.Phased: accepted are
	gpu.Fence(gpu.Relaxed, gpu.ScopeSys)                    // want: gpu.Fence with order gpu.Relaxed: accepted are
	gpu.Fence(gpu.Release, gpu.Scope(9))                    // want: scope 9: accepted are
}

type node struct {
	next *node
	v    uint32
}

func made() *node {
	n := node{v: 1} // want: n would have to live on a heap, which device code has none of: its address is returned at
	return &n
}

//gpu:kernel
func Escapes(t gpu.Thread, a Args) {
	a.Out.Store(made().v)
	x := uint32(1) // want: x would have to live on a heap, which device code has none of: its address is stored at
	a.Ptr.Store(gpu.PtrTo(&x))
	var last *node
	for i := range a.N {
		n := node{last, uint32(i)} // want: n would have to live on a heap, which device code has none of: its address is kept from one round of a loop to the next at
		last = &n
	}
	a.Out.Store(last.v)
	var keep node
	for i := range a.N {
		n := node{v: uint32(i)} // want: n would have to live on a heap, which device code has none of: its address is kept from one round of a loop to the next at
		if keep.next != nil {
			a.Out.Store(keep.next.v)
		}
		keep.next = &n
	}
	a.Ptr.Store(gpu.PtrTo(cell.Of(t))) // want: the address of a gpu.Shared would leave the function: its address is stored
	p := &[]gpu.Shared[uint32]{{}}[0]
	a.Out.Store(*p.Of(t)) // want: a gpu.Shared that is no package variable
}

//gpu:kernel
func Large(t gpu.Thread, a struct{ B [4097]byte }) { // want: arguments of kernel Large are 4097 bytes: 1 to 4096 are accepted
}

//gpu:kernel
func Empty(t gpu.Thread, a struct{}) { // want: arguments of kernel Empty are 0 bytes: 1 to 4096 are accepted; a kernel writes somewhere, so pass a gpu.Ptr
}

//gpu:kernel
func Pointer(t gpu.Thread, a struct{ In struct{ P *uint32 } }) { // want: P is a *uint32, which points to Go's heap: pass a gpu.Ptr
}

//gpu:kernel
func Text(t gpu.Thread, a struct{ S string }) { // want: S is a string, which device code cannot hold: a string is for panics alone; use numbers
}

//gpu:kernel warps=33 // want: kernel option "warps=33 // want
func Warps(t gpu.Thread, a Args) {
}

//gpu:kernel
func Spins(t gpu.Thread, a Args) {
	for a.Out.Load() == 0 { // want: a loop that waits by a plain load
	}
	word := a.Out.Raw()
	for *word < 5 { // want: a loop that waits by a plain load
		if *word == 3 {
			break
		}
	}
	n := 0
	for a.Out.At(1).Load() == 0 { // it counts: what it reads may change between its rounds
		n++
	}
	for a.Out.At(2).Load() == 0 && t.Clock() > 5 {
	}
	for a.N > 0 { // waits for nobody
	}
	a.Out.Store(uint32(n))
}

func with(f func(*uint32) *uint32) uint32 {
	x := uint32(1) // want: its address is passed to a function that is a parameter
	return *f(&x)
}

func from(f func() *uint32) uint32 { return *f() }

//gpu:kernel
func Closures(t gpu.Thread, a Args) {
	y := uint32(a.N) // want: its address is returned
	a.Out.Store(from(func() *uint32 { return &y }) + with(same))
}

func same(p *uint32) *uint32 { return p }

//gpu:kernel
func Copies(t gpu.Thread, a Args) {
	var from [2]gpu.Ptr[uint32]
	from[0] = a.Out
	copy(gpu.Slice(a.Ptr, 2), from[:]) // want: whose elements hold addresses
}
