// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"go/token"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// spec is a function as it is compiled: with what is known at compile time of its arguments.
type spec struct {
	fn  *ssa.Function
	key string // of the known ones
}

// unit is what is kept of a spec.
type unit struct {
	name   string // in LLVM
	known  known
	caller spec // the first one, for messages
	pos    token.Pos
}

// known is arguments that the compiler knows: functions, and orders and scopes, which are part of an instruction.
type known struct {
	funcs  map[*ssa.Parameter]*closure
	consts map[*ssa.Parameter]*ssa.Const
}

// module is the LLVM module of one package's kernels.
type module struct {
	*reporter
	opt     Options
	unroll  map[place]int   // rounds of the loops with a comment
	out     strings.Builder // functions
	globals strings.Builder
	units   map[spec]*unit
	queue   []spec
	used    map[string]bool
	shared  map[*ssa.Global]string
	sharedN int64
	tables  map[*ssa.Global]string
	tablesN int64
	decls   map[string]bool
	hosts   bool // whether a kernel asks what memory is the host's
	strs    map[string]string
	meta    []string
	files   map[string]string
	lacking []int // of instructions that newer GPUs have: which those are
}

func newModule(r *reporter, opt Options, unroll map[place]int) *module {
	m := &module{reporter: r, opt: opt, unroll: unroll, units: map[spec]*unit{}, used: map[string]bool{}, shared: map[*ssa.Global]string{}, tables: map[*ssa.Global]string{},
		decls: map[string]bool{}, strs: map[string]string{}, files: map[string]string{}}
	if opt.Debug {
		m.meta = []string{
			`distinct !DICompileUnit(language: DW_LANG_Go, file: !1, producer: "gpuc", isOptimized: true, runtimeVersion: 0, emissionKind: DebugDirectivesOnly)`,
			`!DIFile(filename: "gpuc", directory: "")`,
			`!DISubroutineType(types: !{})`,
		}
	}
	return m
}

// emit compiles the kernels and all that they reach. What is wrong is in the reporter.
func (m *module) emit(kernels []entry) {
	for i := range kernels {
		m.function(spec{fn: kernels[i].fn}, &kernels[i])
	}
	for len(m.queue) > 0 {
		s := m.queue[0]
		m.queue = m.queue[1:]
		m.function(s, nil)
	}
	if m.sharedN > maxShared {
		m.add(kernels[0].fn.Pos(), nil, "gpu.Shared variables of the package take %d bytes: a block has %d", m.sharedN, maxShared)
	}
}

// maxShared is the shared memory that each architecture has for variables.
const maxShared = 48 << 10

// ref is the LLVM name of a function, which is compiled later if it was not before.
func (m *module) ref(s spec, k known, from spec, pos token.Pos) string {
	if u := m.units[s]; u != nil {
		return u.name
	}
	base := strings.NewReplacer(`"`, "", `\`, "").Replace(s.fn.RelString(nil))
	name := base
	for i := 2; m.used[name]; i++ {
		name = fmt.Sprintf("%s.%d", base, i)
	}
	m.used[name] = true
	u := &unit{`@"` + name + `"`, k, from, pos}
	m.units[s] = u
	m.queue = append(m.queue, s)
	return u.name
}

// chain is how a function was first reached.
func (m *module) chain(s spec) []Frame {
	var all []Frame
	for u := m.units[s]; u != nil; u = m.units[u.caller] {
		all = append(all, Frame{u.caller.fn.RelString(u.caller.fn.Package().Pkg), m.position(u.pos)})
	}
	return all
}

// declare adds a declaration, once.
func (m *module) declare(format string, args ...any) { m.decls[fmt.Sprintf(format, args...)] = true }

// str is a constant string in device memory, for messages.
func (m *module) str(s string) string {
	if n, ok := m.strs[s]; ok {
		return n
	}
	n := fmt.Sprintf("@.str%d", len(m.strs))
	fmt.Fprintf(&m.globals, "%s = private unnamed_addr addrspace(1) constant [%d x i8] c\"%s\\00\"\n", n, len(s)+1, quoted([]byte(s)))
	m.strs[s] = n
	return n
}

// quoted is bytes as LLVM's text has them.
func quoted(bytes []byte) string {
	var b strings.Builder
	for _, c := range bytes {
		fmt.Fprintf(&b, `\%02X`, c)
	}
	return b.String()
}

// text is the whole module.
func (m *module) text(kernels []entry) string {
	var b strings.Builder
	b.WriteString("target datalayout = \"e-i64:64-i128:128-v16:16-v32:32-n16:32:64\"\ntarget triple = \"nvptx64-nvidia-cuda\"\n\n")
	b.WriteString(m.globals.String())
	if m.hosts {
		b.WriteString(onHost)
	}
	b.WriteString(m.out.String())
	for _, d := range slices.Sorted(maps.Keys(m.decls)) {
		fmt.Fprintf(&b, "declare %s\n", d)
	}
	// mustprogress is never set: Go allows an endless loop. All is convergent: a barrier may stand anywhere.
	target := fmt.Sprintf(`"target-cpu"=%q "target-features"="+%s"`, m.opt.Arch, m.opt.feature())
	fmt.Fprintf(&b, "\nattributes #0 = { convergent nounwind alwaysinline %s }\n", target)
	fmt.Fprintf(&b, "attributes #1 = { convergent nounwind %s }\n", target)
	b.WriteString("attributes #2 = { convergent nounwind }\nattributes #3 = { nounwind }\nattributes #4 = { cold noreturn nounwind }\nattributes #5 = { nounwind memory(none) }\n\n")
	var notes []string
	for _, k := range kernels {
		// One block of the most warps is to be resident; without that number ptxas aims at two of them, and spills.
		notes = append(notes, m.md(`!{ptr @%s, !"kernel", i32 1, !"maxntidx", i32 %d, !"minctasm", i32 1}`, k.name, k.warps*32))
	}
	fmt.Fprintf(&b, "!nvvm.annotations = !{%s}\n", strings.Join(notes, ", "))
	if m.opt.Debug {
		b.WriteString("!llvm.dbg.cu = !{!0}\n")
		fmt.Fprintf(&b, "!llvm.module.flags = !{%s, %s}\n", m.md(`!{i32 2, !"Dwarf Version", i32 2}`), m.md(`!{i32 2, !"Debug Info Version", i32 3}`))
	}
	for i, s := range m.meta {
		fmt.Fprintf(&b, "!%d = %s\n", i, s)
	}
	return b.String()
}

// md adds a metadata node and is its name.
func (m *module) md(format string, args ...any) string {
	m.meta = append(m.meta, fmt.Sprintf(format, args...))
	return fmt.Sprintf("!%d", len(m.meta)-1)
}

// sourceName is a file as code names it: by its package, so that nothing depends on where the tree lies.
func (m *module) sourceName(f *ssa.Function, pos token.Pos) string {
	name := m.fset.Position(pos).Filename
	name = name[strings.LastIndexByte(name, '/')+1:]
	if p := f.Package(); p != nil {
		return p.Pkg.Path() + "/" + name
	}
	return name
}

// file is the debug node of a source file.
func (m *module) file(name string) string {
	if id, ok := m.files[name]; ok {
		return id
	}
	id := m.md("!DIFile(filename: %q, directory: \"\")", name)
	m.files[name] = id
	return id
}
