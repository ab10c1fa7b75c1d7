// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"go/constant"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/ssa"
)

func extension(t types.Type) string {
	if isUnsigned(t) {
		return "zext"
	}
	return "sext"
}

var compares = map[token.Token]string{token.EQL: "eq", token.NEQ: "ne", token.LSS: "lt", token.LEQ: "le", token.GTR: "gt", token.GEQ: "ge"}

func (e *emitter) binop(in *ssa.BinOp) string {
	t := in.X.Type()
	llt := e.typeOf(t, in.Pos())
	x, y := e.value(in.X), e.value(in.Y)
	if c := compares[in.Op]; c != "" {
		return e.compare(in.Op, c, llt, t, x, y)
	}
	if llt == "float" || llt == "double" {
		// Never fast, never contracted: CPU and GPU agree to the bit.
		if op := map[token.Token]string{token.ADD: "fadd", token.SUB: "fsub", token.MUL: "fmul", token.QUO: "fdiv"}[in.Op]; op != "" {
			return e.ins("%s %s %s, %s", op, llt, x, y)
		}
	}
	if basicInfo(t)&types.IsInteger == 0 {
		e.errorf(in.Pos(), "operator %s on %s in device code%s", in.Op, t, insteadOfType(t))
		return "zeroinitializer"
	}
	switch in.Op {
	case token.QUO, token.REM:
		return e.divide(in, x, y, llt)
	case token.SHL, token.SHR:
		return e.shift(in, x, y, llt)
	case token.AND_NOT:
		return e.ins("and %s %s, %s", llt, x, e.ins("xor %s %s, -1", llt, y))
	}
	op := map[token.Token]string{token.ADD: "add", token.SUB: "sub", token.MUL: "mul", token.AND: "and", token.OR: "or", token.XOR: "xor"}[in.Op]
	return e.ins("%s %s %s, %s", op, llt, x, y) // wraps, as Go's do
}

func (e *emitter) compare(op token.Token, c, llt string, t types.Type, x, y string) string {
	switch {
	case llt == "float" || llt == "double":
		if op == token.NEQ {
			return e.ins("fcmp une %s %s, %s", llt, x, y)
		}
		return e.ins("fcmp o%s %s %s, %s", c, llt, x, y)
	case isAggregate(llt):
		return e.compareAll(op, llt, t, x, y)
	case op == token.EQL || op == token.NEQ:
		return e.ins("icmp %s %s %s, %s", c, llt, x, y)
	case isUnsigned(t):
		return e.ins("icmp u%s %s %s, %s", c, llt, x, y)
	}
	return e.ins("icmp s%s %s %s, %s", c, llt, x, y)
}

// compareAll compares structs and arrays, scalar by scalar.
func (e *emitter) compareAll(op token.Token, llt string, t types.Type, x, y string) string {
	if _, ok := t.Underlying().(*types.Slice); ok { // with nil, which Go allows alone
		p := e.ins("icmp eq ptr %s, null", e.slicePart(map[bool]string{true: y, false: x}[x == "zeroinitializer"], 0))
		if op == token.NEQ {
			return e.ins("xor i1 %s, true", p)
		}
		return p
	}
	same := "true"
	for _, l := range leaves(t) {
		m, path := e.memOf(l.typ), strings.Join(l.path, ", ")
		a, b := e.ins("extractvalue %s %s, %s", llt, x, path), e.ins("extractvalue %s %s, %s", llt, y, path)
		same = e.ins("and i1 %s, %s", same, e.compare(token.EQL, "eq", m, l.typ, a, b))
	}
	if op == token.NEQ {
		return e.ins("xor i1 %s, true", same)
	}
	return same
}

// divide: a divisor of 0, and the least number divided by -1, are undefined unless the build is checked.
func (e *emitter) divide(in *ssa.BinOp, x, y, llt string) string {
	op := map[token.Token]string{token.QUO: "div", token.REM: "rem"}[in.Op]
	_, constant := in.Y.(*ssa.Const)
	if e.opt.Checks && !constant {
		e.require(e.ins("icmp ne %s %s, 0", llt, y), "integer divide by zero")
	}
	if isUnsigned(in.X.Type()) {
		return e.ins("u%s %s %s, %s", op, llt, x, y)
	}
	if !e.opt.Checks || constant {
		return e.ins("s%s %s %s, %s", op, llt, x, y)
	}
	minus := e.ins("icmp eq %s %s, -1", llt, y)
	q := e.ins("s%s %s %s, %s", op, llt, x, e.ins("select i1 %s, %s 1, %s %s", minus, llt, llt, y))
	if in.Op == token.REM {
		return e.ins("select i1 %s, %s 0, %s %s", minus, llt, llt, q)
	}
	return e.ins("select i1 %s, %s %s, %s %s", minus, llt, e.ins("sub %s 0, %s", llt, x), llt, q)
}

// shift: a count past the width gives 0, or the sign, as in Go. LLVM leaves it undefined.
func (e *emitter) shift(in *ssa.BinOp, x, y, llt string) string {
	op := "shl"
	if in.Op == token.SHR {
		op = "lshr"
		if !isUnsigned(in.X.Type()) {
			op = "ashr"
		}
	}
	width, yt := bits(llt), e.typeOf(in.Y.Type(), in.Pos())
	if c, ok := in.Y.(*ssa.Const); ok {
		n, exact := constant.Uint64Val(constant.ToInt(c.Value))
		switch {
		case exact && n < uint64(width):
			return e.ins("%s %s %s, %d", op, llt, x, n)
		case op == "ashr":
			return e.ins("ashr %s %s, %d", llt, x, width-1)
		}
		return "0"
	}
	if e.opt.Checks && !isUnsigned(in.Y.Type()) {
		e.require(e.ins("icmp sge %s %s, 0", yt, y), "negative shift amount")
	}
	fits := "true"
	if bits(yt) > 6 || width < 64 {
		fits = e.ins("icmp ult %s %s, %d", yt, y, width)
	}
	switch w := bits(yt); {
	case w > width:
		y = e.ins("trunc %s %s to %s", yt, y, llt)
	case w < width:
		y = e.ins("zext %s %s to %s", yt, y, llt)
	}
	if op == "ashr" {
		y = e.ins("select i1 %s, %s %s, %s %d", fits, llt, y, llt, width-1)
		return e.ins("ashr %s %s, %s", llt, x, y)
	}
	return e.ins("select i1 %s, %s %s, %s 0", fits, llt, e.ins("%s %s %s, %s", op, llt, x, y), llt)
}

func (e *emitter) unop(in *ssa.UnOp) string {
	t := e.typeOf(in.Type(), in.Pos())
	switch in.Op {
	case token.MUL:
		return e.load(e.pointer(in.X), in.Type(), e.alignOfAddr(in.Type()))
	case token.SUB:
		if t == "float" || t == "double" {
			return e.ins("fneg %s %s", t, e.value(in.X))
		}
		return e.ins("sub %s 0, %s", t, e.value(in.X))
	case token.NOT:
		return e.ins("xor i1 %s, true", e.value(in.X))
	case token.XOR:
		return e.ins("xor %s %s, -1", t, e.value(in.X))
	}
	e.errorf(in.Pos(), "a channel in device code: use gpu.Store and gpu.Load with an order")
	return "zeroinitializer"
}

// convert is Go's conversion of numbers and addresses.
func (e *emitter) convert(x string, from, to types.Type) string {
	a, b := e.typeOf(from, e.pos), e.typeOf(to, e.pos)
	fi, ti := basicInfo(from), basicInfo(to)
	switch {
	case a == b:
		return x
	case fi&types.IsInteger != 0 && ti&types.IsInteger != 0:
		if bits(a) > bits(b) {
			return e.ins("trunc %s %s to %s", a, x, b)
		}
		return e.ins("%s %s %s to %s", extension(from), a, x, b)
	case fi&types.IsInteger != 0 && ti&types.IsFloat != 0:
		return e.ins("%s %s %s to %s", map[bool]string{true: "uitofp", false: "sitofp"}[isUnsigned(from)], a, x, b)
	case fi&types.IsFloat != 0 && ti&types.IsInteger != 0:
		// Out of range it is some number in Go, and nothing at all in LLVM unless it is frozen.
		v := e.ins("%s %s %s to %s", map[bool]string{true: "fptoui", false: "fptosi"}[isUnsigned(to)], a, x, b)
		return e.ins("freeze %s %s", b, v)
	case a == "float" && b == "double":
		return e.ins("fpext float %s to double", x)
	case a == "double" && b == "float":
		return e.ins("fptrunc double %s to float", x)
	case a == "ptr" && b == "i64":
		return e.ins("ptrtoint ptr %s to i64", x)
	case a == "i64" && b == "ptr":
		return e.ins("inttoptr i64 %s to ptr", x)
	}
	lacking := to // what device code does not have
	if valType(from) == "" || basicInfo(from)&types.IsString != 0 {
		lacking = from
	}
	e.errorf(e.pos, "a conversion from %s to %s in device code%s", from, to, insteadOfType(lacking))
	return "zeroinitializer"
}
