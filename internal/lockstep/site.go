// SPDX-License-Identifier: Apache-2.0

package lockstep

import (
	"runtime"
	"strconv"
	"strings"
)

// site is where a kernel called an operation: the calls that led there, innermost first.
type site struct {
	pcs [24]uintptr
	n   int
}

//go:norace
func here() (s site) {
	s.n = runtime.Callers(2, s.pcs[:])
	return s
}

// Call names an operation with what it was given: lanes that give different values do not meet. No fmt: its pool orders lanes.
func Call(op string, a, b int32) string {
	return op + "(" + strconv.Itoa(int(a)) + ", " + strconv.Itoa(int(b)) + ")"
}

// machinery are the packages whose functions stand between a kernel and the operation, and below the kernel.
var machinery = []string{"github.com/doorbell-net/doorbell/internal/lockstep.", "github.com/doorbell-net/doorbell/gpu."}

// String is file:line of the call in the kernel's source, and of those that led to it.
//
//go:norace
func (s site) String() string {
	var at []string
	frames := runtime.CallersFrames(s.pcs[:s.n])
	for {
		f, more := frames.Next()
		inside := strings.HasPrefix(f.Function, machinery[0]) || strings.HasPrefix(f.Function, machinery[1])
		switch {
		case !inside && f.File != "":
			at = append(at, short(f.File)+":"+strconv.Itoa(f.Line)) // no fmt: its pool synchronizes, and this may be hidden
		case inside && len(at) > 0:
			more = false // what launched the kernel
		}
		if !more {
			return strings.Join(at, " < ")
		}
	}
}

// short is a file's name with its folder.
func short(file string) string {
	parts := strings.Split(file, "/")
	return strings.Join(parts[max(0, len(parts)-2):], "/")
}

// same says whether two calls are at one place. Compilers may make two places of one in the source, so those count as one.
//
//go:norace
func (s *site) same(o *site) bool {
	return s.n == o.n && s.pcs == o.pcs || s.String() == o.String()
}
