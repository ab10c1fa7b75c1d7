// SPDX-License-Identifier: Apache-2.0

package gpu

// A multimem address stands for the same bytes of several GPUs: a store there reaches all, a load makes one number of theirs.
// sm_90 has them (PTX: multimem), the CPU has none. Code asks HasMultimem, and does without them where it is false. They are
// relaxed, at the scope of the system. A rank that shares no such address never gets one, so that code need not be compiled
// for a GPU to be right there.

// HasMultimem says whether the functions below may be called: the package says //gpu:arch sm_90 or later. The compiler
// knows it, and drops what is not for its GPU.
func HasMultimem() bool { return false }

// MultimemStore stores v to each.
func MultimemStore[T Word](_ Ptr[T], _ T) { noMultimem() }

// MultimemStore4 stores 16 bytes to each.
func MultimemStore4(_ Ptr[U32x4], _ U32x4) { noMultimem() }

// MultimemSum is the sum of each one's number: float32 in an order of the hardware's own.
func MultimemSum[T Word](_ Ptr[T]) (sum T) {
	noMultimem()
	return sum
}

// MultimemMin is the least of each one's number.
func MultimemMin[T Int](_ Ptr[T]) (least T) {
	noMultimem()
	return least
}

// MultimemMax is the greatest.
func MultimemMax[T Int](_ Ptr[T]) (most T) {
	noMultimem()
	return most
}

// MultimemAnd has the bits that are in each one's number.
func MultimemAnd[T Int](_ Ptr[T]) (bits T) {
	noMultimem()
	return bits
}

// MultimemOr has the bits that are in any.
func MultimemOr[T Int](_ Ptr[T]) (bits T) {
	noMultimem()
	return bits
}

func noMultimem() { panic("gpu: a multimem address on a device that has none: HasMultimem is false") }
