package spin

import "github.com/doorbell-net/doorbell/gpu"

type Args struct {
	Flag, Out gpu.Ptr[uint32]
	N         gpu.Ptr[int32]
}

//gpu:kernel
func Plain(t gpu.Thread, a Args) {
	for a.Flag.Load() == 0 { // want "waits by a plain load"
	}
}

//gpu:kernel
func Patient(t gpu.Thread, a Args) {
	start := t.Clock()
	for round := int32(0); a.Flag.At(3).Load() != 7; round++ { // want "waits by a plain load"
		if t.Idle(round, t.Clock()-start); t.Clock()-start > 1000 {
			return
		}
	}
}

//gpu:kernel
func Raw(t gpu.Thread, a Args) {
	for *a.Flag.Raw() == 0 { // want "waits by a plain load"
		t.Relax(0)
	}
}

//gpu:kernel
func Helped(t gpu.Thread, a Args) { wait(a.Flag) }

func wait(p gpu.Ptr[uint32]) {
	for p.Load()&1 == 0 { // want "waits by a plain load"
	}
}

//gpu:kernel
func Excused(t gpu.Thread, a Args) {
	//gpuvet:ok nobody waits: a test of the excuse
	for a.Flag.Load() == 0 {
	}
}

//gpu:kernel
func Ordered(t gpu.Thread, a Args) {
	for round := int32(0); gpu.Load(a.Flag, gpu.Acquire, gpu.ScopeSys) == 0; round++ {
		t.Idle(round, 0)
	}
}

// Counts to a number in memory: its end comes by itself.
//
//gpu:kernel
func Counts(t gpu.Thread, a Args) {
	for i := int32(0); i < a.N.Load(); i++ {
		a.Out.At(int(i)).Store(1)
	}
	sum := uint32(0)
	for i := range 10 {
		sum += a.Flag.At(i).Load()
	}
	a.Out.Store(sum)
}

// Follows a list: what it looks at changes.
//
//gpu:kernel
func Follows(t gpu.Thread, a Args) {
	i := uint32(0)
	for a.Flag.At(int(i)).Load() != 0 {
		i = a.Flag.At(int(i)).Load()
	}
	a.Out.Store(i)
}

func host(p *uint32) {
	for *p == 0 {
	}
}
