// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"strconv"

	"golang.org/x/tools/go/ssa"
)

// What a checked build looks at before it does it. A kernel that fails ends, and the driver prints the source's file and
// line, the function, block and thread, and what is wrong.

// require goes on if ok, and else ends the kernel with a message. It is for checked builds.
func (e *emitter) require(ok, msg string) {
	bad, good := e.newLabel("bad"), e.newLabel("good")
	e.line("br i1 %s, label %%%s, label %%%s", ok, good, bad)
	e.start(bad)
	e.abort(msg)
	e.start(good)
}

// abort ends the kernel. A checked build says why: the driver prints file, line, block and thread.
func (e *emitter) abort(msg string) {
	if !e.opt.Checks {
		e.declare("void @llvm.trap()")
		e.line("call void @llvm.trap()")
		e.line("unreachable")
		return
	}
	e.declare("void @__assertfail(ptr, ptr, i32, ptr, i64) #4")
	c := func(s string) string {
		return fmt.Sprintf("ptr addrspacecast (ptr addrspace(1) %s to ptr)", e.str(s))
	}
	e.line("call void @__assertfail(%s, %s, i32 %d, %s, i64 1) #4", c(msg), c(e.sourceName(e.f, e.pos)), e.fset.Position(e.pos).Line, c(e.f.RelString(nil)))
	e.line("unreachable")
}

// bound is Go's check of an index.
func (e *emitter) bound(i, n string) {
	if e.opt.Checks {
		e.require(e.ins("icmp ult i64 %s, %s", i, n), "index out of range")
	}
}

// pointer is v, which is followed: Go's check of it. The address of a variable, or of a part of one, needs none.
func (e *emitter) pointer(v ssa.Value) string {
	p := e.value(v)
	switch v.(type) {
	case *ssa.Alloc, *ssa.FieldAddr, *ssa.IndexAddr, *ssa.Global, *ssa.FreeVar:
		return p
	}
	if e.opt.Checks {
		e.require(e.ins("icmp ne ptr %s, null", p), "nil pointer dereference")
	}
	return p
}

// behind is the gpu.Ptr that a call has first, and follows: not nil, and a multiple of align, since a GPU has no access
// across a boundary. Only the host knows whether memory is there.
func (e *emitter) behind(in *ssa.Call, align int64) string {
	p := e.arg(in, 0)
	if !e.opt.Checks {
		return p
	}
	e.require(e.ins("icmp ne ptr %s, null", p), "nil gpu.Ptr")
	if align > 1 {
		rest := e.ins("and i64 %s, %d", e.ins("ptrtoint ptr %s to i64", p), align-1)
		e.require(e.ins("icmp eq i64 %s, 0", rest), "gpu.Ptr that is no multiple of "+strconv.FormatInt(align, 10))
	}
	return p
}
