// SPDX-License-Identifier: Apache-2.0

// Package compiler turns Go kernels into PTX: go/packages with the tag gpuc, go/ssa, LLVM's text, opt and llc of one LLVM,
// PTX for the driver. It runs when a package is built or changed, never where its kernels run; cmd/gpuc is its face.
//
// A kernel is a function with the comment
//
//	//gpu:kernel
//	func Name(t gpu.Thread, a Args)
//
// It becomes the entry Name of its package's one PTX module, with one parameter: Args by value, as Go lays it out, at most
// 4,096 bytes, aligned to 8. "//gpu:kernel warps=N" says that its blocks have at most N warps (32 without it): the fewer,
// the more registers a thread may have (64 for 32 warps, 128 for 16).
//
// Under it, "//gpu:variant Hidden=7168 TopK=8" makes an entry more, in which those fields of the arguments are constants:
// loops over them are unrolled, divisions by them cheap. Fields are integers or bools, of structs inside too (Inner.Field).
// A warps=N at its end is the variant's own. A launch takes the first variant whose values its arguments have, and the kernel itself else; a software device runs the
// Go function in any case. An integer field with the tag `gpu:"split"`, of a struct in the arguments, asks for two entries of
// each kernel that takes it by a named type: the kernel's own and its variants' for 0, and one for 1. It has no other value. A
// variant that comes out as its kernel is left out.
//
// "//gpu:unroll N" in the line before a loop makes one of N of its rounds, also where their number is not known; N is 1 for a
// loop that is to stay as it is. LLVM decides about the others, but for those that look at memory again and again, which stay.
//
// # What device code is
//
// All that a kernel calls, in any package with source outside the standard library: structs, arrays, slices, methods,
// generics, several results, closures and functions as arguments (each is compiled for what it is called with), loops,
// switches, panics. Of the standard library it is a part of math and math/bits. Dead code under a constant condition
// (gpu.WarpSize == 1) may be anything.
//
// What needs a heap or a run-time is refused, all at once, each with its place, how a kernel comes to it, and what to
// write instead: make, append, variables whose address outlives them, maps, channels, interfaces, strings but in a panic,
// goroutines, defer, recursion, package variables other than gpu.Shared and tables. So are orders and scopes that are not
// constants once functions are specialised, loops that wait by plain loads, and kernels of which nothing is left.
//
// A table is a package variable that is not exported, of numbers and bools (var weights = [...]float32{...}), made of constants
// and written nowhere. It becomes constant memory, of which a package's kernels have 64 KiB.
//
// # Where it differs from Go
//
// Unless the build is checked (Options.Checks):
//
//   - indexes, slice bounds and shift counts below zero are not checked;
//   - an integer divided by 0 is undefined, and so is the least one divided by -1;
//   - a nil pointer is undefined: mostly a fault of the GPU; so is a gpu.Ptr that is no multiple of what its type takes;
//   - a panic ends the kernel with a trap, and the launch fails; its text is kept in checked builds only;
//   - an atomic on memory of the host is atomic against no other's. A checked build asks a table of that memory, which the device
//     keeps for PTX that it compiles (abi.HostTable); in machine code that was made beforehand there is none, and nothing is refused.
//     Each question is some loads across PCIe.
//
// A checked build ends such a kernel, and the driver prints file, line, function, block and thread. In both: how much memory
// is behind a gpu.Ptr is not known, and not checked. Blank fields are not copied. A float outside of an integer type's range
// converts to some number, as in Go, but not to the same one. A NaN's bits may differ. Otherwise results are Go's to the
// bit: integers wrap, shifts past the width give 0 or the sign, each float operation is rounded, none are fused
// (TestSemantics runs the same kernels both ways). Go gives float32(a*b)+c that guarantee on each of its machines only where
// a conversion stands; gpu.Mul and gpu.Add have it.
//
// # How it is kept right
//
//   - Memory is addressed by Go's byte offsets; LLVM's types describe values alone. (Once, in a prototype, the two layouts
//     differed over a field of no size, and LLVM took the kernel away without a word.)
//   - What is ordered is inline PTX that clobbers memory, since LLVM 19 drops or cannot print orders and scopes (ordered.go).
//   - Floats are neither fast nor contracted; functions are not mustprogress: Go has endless loops; all is convergent.
//   - The PTX must have each kernel, with a body, and no external function (ptx.go).
//   - Addresses are generic, unless proved to be of global memory (global.go).
//   - The same sources give the same text on any machine: one platform is named to the go command, one LLVM is accepted, no
//     path is in it. What is committed is compared with it in CI (tools/ptx).
//
// # Which GPU
//
// One module per package, for sm_70 and PTX 6.3: the oldest with the memory model's loads, stores and fences, and with
// nanosleep. Little in the vocabulary is newer, drivers compile it for the GPU that they find (sm_70 to sm_100 were tried
// with ptxas 12.9 and 13.5), and a module for sm_90 would keep A100s out and gain nothing. Options.Arch is there for what
// comes.
//
// Bulk copies and gpu.Mbarrier are newer: a package with //gpu:arch sm_90 has them, and runs on those GPUs and later ones.
// What is only faster there (Elect, LoadOnce, StoreOnce) is done in an older way in other packages.
//
// A package that says //gpu:cubin sm_90 has machine code beside its PTX, which the cuda device loads in place of it:
// other GPUs, and drivers that refuse it, compile the PTX. ptxas of CUDA 12.9 makes it, so that all drivers of CUDA 12 and
// later take it. Where kernels use what newer GPUs have an instruction for (BF16x2, E4M3x2), a cubin is of PTX with them; the
// PTX beside it does the same by integers. Cubins for sm_80, sm_90 and sm_100 can be asked for. Here it is sm_90 alone, of what
// the command runs: three generations of all packages are 2.4 MB a change of gin, 0.7 MB compressed. They are not compressed
// here, since git and module archives do that, and git then stores what differs.
//
// CI assembles each kernel for all three, and fails on one with spills or other local memory (tools/ptx has the exceptions).
package compiler
