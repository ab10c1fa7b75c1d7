package nc

import (
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

type Args struct {
	In, Out gpu.Ptr[gpu.U32x4]
	Words   gpu.Ptr[uint32]
	Win     gin.Window
}

//gpu:kernel
func Clean(t gpu.Thread, a Args) { a.Out.At(2).Store(gpu.LoadNC(a.In.At(3))) }

//gpu:kernel
func Same(t gpu.Thread, a Args) {
	a.Out.Store(gpu.U32x4{})
	t.SyncBlock()
	a.In.Raw()[0] = gpu.LoadNC(a.Out.At(1))[0] // want `LoadNC of Args.Out, which kernel Same also writes, at line 19`
}

//gpu:kernel
func Once(t gpu.Thread, a Args) {
	gpu.StoreOnce(a.Out, gpu.LoadOnce(a.In))
	t.SyncBlock()
	a.Words.Store(gpu.LoadOnce(a.Out.At(1))[0]) // want `LoadOnce of Args.Out, which kernel Once also writes, at line 26`
}

//gpu:kernel
func Bulk(t gpu.Thread, a Args) {
	gpu.CopyBulkOut(t, gpu.Cast[byte](a.Out), gpu.Cast[byte](a.In), 16)
	a.In.At(2).Store(gpu.LoadNC(a.Out.At(1))) // want `LoadNC of Args.Out, which kernel Bulk also writes`
}

// Through helpers, and as another type.
//
//gpu:kernel
func Helped(t gpu.Thread, a Args) {
	fill(t, gpu.Cast[byte](a.Words))
	a.Out.Store(read(gpu.Cast[gpu.U32x4](a.Words)))
}

func fill(t gpu.Thread, to gpu.Ptr[byte]) { gpu.CopyBlock(t, to, to.Byte(64), 64) }

func read(p gpu.Ptr[gpu.U32x4]) gpu.U32x4 {
	return gpu.LoadNC(p) // want `LoadNC of Args.Words, which kernel Helped also writes`
}

//gpu:kernel
func Window(t gpu.Thread, a Args) {
	a.Out.Store(gpu.LoadNC(gpu.Cast[gpu.U32x4](a.Win.Base.Byte(64)))) // want `LoadNC of memory that peers or the host write \(Window.Base\)`
}

//gpu:kernel
func Excused(t gpu.Thread, a Args) {
	a.Out.Store(gpu.LoadNC(gpu.Cast[gpu.U32x4](a.Win.Base))) //gpuvet:ok no peer has this window
}
