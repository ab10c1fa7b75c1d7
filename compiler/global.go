// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"regexp"
	"strings"
)

// toGlobal names the address space of what is proved to be global memory, in LLVM's text after optimisation, when all
// is inlined and local variables have become registers.
//
// The proof: an address that was read from the kernel's arguments or from global memory is one of global memory, since
// those of local variables and of gpu.Shared are never stored there (escape.go refuses it), and the host has none. What
// is not proved stays generic, which is always right.
func toGlobal(text string) string {
	var out strings.Builder
	for part := range functions(text) {
		if strings.HasPrefix(part, "define") {
			part = (&spaces{lines: strings.SplitAfter(part, "\n"), from: map[string]string{}}).rewrite()
		}
		out.WriteString(part)
	}
	return out.String()
}

// functions cuts a module into its functions and what lies between them.
func functions(text string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for text != "" {
			end := len(text)
			if strings.HasPrefix(text, "define") {
				if i := strings.Index(text, "\n}\n"); i >= 0 {
					end = i + len("\n}\n")
				}
			} else if i := strings.Index(text, "\ndefine"); i >= 0 {
				end = i + 1
			}
			if !yield(text[:end]) {
				return
			}
			text = text[end:]
		}
	}
}

// spaces is a function and where its addresses come from.
type spaces struct {
	lines []string
	from  map[string]string // the instruction that makes a value
	n     int
}

var (
	defines     = regexp.MustCompile(`^  (%[\w.]+) = (.*)`)
	loadsPtr    = regexp.MustCompile(`^load ptr, ptr (%[\w.]+)`)
	indexes     = regexp.MustCompile(`^getelementptr (?:inbounds |nuw |nusw )*[^%@]*?, ptr (%[\w.]+)`)
	phiOf       = regexp.MustCompile(`^phi ptr (.*)`)
	phiEdge     = regexp.MustCompile(`\[ (.+?), %(?:[\w.]+|"[^"]+") \]`) // the value may be an expression, the label a function's name
	selects     = regexp.MustCompile(`^select i1 [^,]+, ptr ([^,]+), ptr ([^,]+)`)
	orderedLine = regexp.MustCompile(`asm sideeffect "((?:ld|st|atom|red)\.\w+\.\w+)(\.[^"]*", "[^"]*"\()ptr(?: [a-z]+)* (%[\w.]+)`)
)

func (s *spaces) rewrite() string {
	for _, l := range s.lines {
		if m := defines.FindStringSubmatch(l); m != nil {
			s.from[m[1]] = m[2]
		}
	}
	known := s.solve()
	var out strings.Builder
	for _, l := range s.lines {
		if m := defines.FindStringSubmatch(l); m != nil && loadsPtr.MatchString(m[2]) && known[m[1]] {
			// The value by its old name is the address in that space: LLVM carries it on to the plain loads and stores.
			s.n++
			fmt.Fprintf(&out, "  %%in%d = %s\n  %%at%d = addrspacecast ptr %%in%d to ptr addrspace(1)\n  %s = addrspacecast ptr addrspace(1) %%at%d to ptr\n",
				s.n, m[2], s.n, s.n, m[1], s.n)
			continue
		}
		if m := orderedLine.FindStringSubmatchIndex(l); m != nil && known[l[m[6]:m[7]]] {
			s.n++
			fmt.Fprintf(&out, "  %%to%d = addrspacecast ptr %s to ptr addrspace(1)\n", s.n, l[m[6]:m[7]])
			l = fmt.Sprintf("%s%s.global%sptr addrspace(1) %%to%d%s", l[:m[2]], l[m[2]:m[3]], l[m[4]:m[5]], s.n, l[m[7]:])
		}
		out.WriteString(l)
	}
	return out.String()
}

// solve is the values that are addresses of global memory: all that might be are taken for such, until what they are
// made of is not.
func (s *spaces) solve() map[string]bool {
	known := map[string]bool{}
	for v := range s.from {
		known[v] = true
	}
	for changed := true; changed; {
		changed = false
		for v, made := range s.from {
			if known[v] && !s.global(made, known) {
				known[v], changed = false, true
			}
		}
	}
	return known
}

// global says whether an instruction makes an address of global memory, by what is known of its operands.
func (s *spaces) global(made string, known map[string]bool) bool {
	operand := func(v string) bool { return v == "null" || v == "poison" || v == "undef" || known[v] }
	if m := loadsPtr.FindStringSubmatch(made); m != nil {
		return known[m[1]] || s.argument(m[1])
	}
	if m := indexes.FindStringSubmatch(made); m != nil {
		return known[m[1]]
	}
	if m := phiOf.FindStringSubmatch(made); m != nil {
		edges := phiEdge.FindAllStringSubmatch(m[1], -1)
		for _, e := range edges {
			if !operand(e[1]) {
				return false
			}
		}
		return len(edges) > 0
	}
	if m := selects.FindStringSubmatch(made); m != nil {
		return operand(m[1]) && operand(m[2])
	}
	return false
}

// argument says whether v is an address in the kernel's arguments.
func (s *spaces) argument(v string) bool {
	for v != "%args" {
		m := indexes.FindStringSubmatch(s.from[v])
		if m == nil {
			return false
		}
		v = m[1]
	}
	return true
}
