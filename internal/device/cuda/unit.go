// SPDX-License-Identifier: Apache-2.0

package cuda

import "strings"

const (
	entryLine = ".visible .entry "
	elf       = "\x7fELF" // begins code that is compiled
)

// unit is the module of one kernel alone: the head of ptx and that entry. The driver compiles kernels of a module one after
// another, a second for each 10,000 lines, and modules side by side (link). Text that has anything between its entries, and what is
// no text, stays whole.
func unit(ptx, name string) string {
	at := strings.Index(ptx, "\n"+entryLine)
	if at < 0 || strings.HasPrefix(ptx, elf) {
		return ptx
	}
	head, rest, mine := ptx[:at+1], ptx[at+1:], ""
	for rest != "" {
		end := strings.Index(rest, "\n}\n")
		if !strings.HasPrefix(rest, entryLine) || end < 0 {
			return ptx
		}
		body := rest[:end+3]
		if strings.HasPrefix(body, entryLine+name+"(") {
			mine = body
		}
		rest = strings.TrimLeft(rest[end+3:], "\n")
	}
	if mine == "" {
		return ptx // the driver will say that it has no such entry
	}
	return head + mine
}
