// Package signatures has kernels whose signature is none.
package signatures

import "github.com/doorbell-net/doorbell/gpu"

type Args struct{ N int32 }

//gpu:kernel // want: kernel Result returns a value
func Result(t gpu.Thread, a Args) int32 {
	return 1
}

//gpu:kernel // want: kernel Two has 3 parameters
func Two(t gpu.Thread, a, b Args) {
}

//gpu:kernel // want: kernel NoThread has a first parameter of type
func NoThread(a, b Args) {
}

//gpu:kernel // want: kernel Scalar has arguments of type int32
func Scalar(t gpu.Thread, n int32) {
}

//gpu:kernel // want: kernel Generic has type parameters
func Generic[T gpu.Word](t gpu.Thread, a Args) {
}

type thing struct{}

//gpu:kernel // want: kernel Method is a method
func (thing) Method(t gpu.Thread, a Args) {}
