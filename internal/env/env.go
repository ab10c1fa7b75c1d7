// SPDX-License-Identifier: Apache-2.0

// Package env is the registry of the DOORBELL_* environment variables: each is declared once, in vars.go, with its name,
// type, default and a line of help, and read only through the typed value declared there.
//
// Of other software's variables it has those that foreign names.
//
// To add one: declare it in vars.go, run `go test ./internal/env -update`, and use its Get.
package env

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// Prefix begins the name of every variable that is Doorbell's.
const Prefix = "DOORBELL_"

// Lookup finds a variable's value as os.LookupEnv does. Where a function takes a Lookup, nil means os.LookupEnv. Tests
// pass From(map) and leave the process's environment alone.
type Lookup func(name string) (value string, ok bool)

// From returns a Lookup over m, which must not change while the Lookup is used.
func From(m map[string]string) Lookup {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

// Info is what the registry knows of a variable.
type Info struct {
	Name    string
	Type    string // string, int, uint64, duration, bool or bytes
	Default string // "" if there is none
	Accepts string // what a value may be, in words
	Help    string // one line
}

var registry []Info

// foreign are the names without the prefix that are read too: NCCL's, for who comes from there.
var foreign = []string{"NCCL_GIN_TYPE", "NCCL_GIN_BACKEND"}

// Var is one declared variable whose values are of type T. Its methods may be called from many goroutines.
type Var[T any] struct {
	info  Info
	parse func(string) (T, error)
}

// declare registers a variable. It panics on a broken declaration, which is a mistake in vars.go that any run shows.
func declare[T any](info Info, parse func(string) (T, error)) Var[T] {
	switch {
	case !strings.HasPrefix(info.Name, Prefix) && !slices.Contains(foreign, info.Name):
		panic("env: declare " + info.Name + ": the name must begin with " + Prefix + ", or be one of " + strings.Join(foreign, ", "))
	case slices.ContainsFunc(registry, func(o Info) bool { return o.Name == info.Name }):
		panic("env: declare " + info.Name + ": declared twice")
	case info.Help == "" || strings.Contains(info.Help, "\n"):
		panic("env: declare " + info.Name + ": the help must be one line")
	}
	if info.Default != "" {
		if _, err := parse(info.Default); err != nil {
			panic("env: declare " + info.Name + ": default " + info.Default + ": " + err.Error())
		}
	}
	registry = append(registry, info)
	return Var[T]{info, parse}
}

// Name returns the variable's name, for messages and for child processes' environments.
func (v Var[T]) Name() string { return v.info.Name }

// IsSet reports whether the variable has a value. One set to the empty string counts as not set.
func (v Var[T]) IsSet(lookup Lookup) bool {
	_, ok := find(lookup, v.info.Name)
	return ok
}

// Get returns the variable's value, or its default if it is not set. The error names the variable, the value and what is
// accepted; a variable that is not set and has no default gives an error too, so ask IsSet first where that is no fault.
func (v Var[T]) Get(lookup Lookup) (T, error) {
	var zero T
	s, ok := find(lookup, v.info.Name)
	if !ok {
		if s = v.info.Default; s == "" {
			return zero, fmt.Errorf("env: read %s: not set (accepted: %s)", v.info.Name, v.info.Accepts)
		}
	}
	t, err := v.parse(s)
	if err != nil {
		return zero, fmt.Errorf("env: read %s=%q: %w (accepted: %s)", v.info.Name, s, err, v.info.Accepts)
	}
	return t, nil
}

func find(lookup Lookup, name string) (string, bool) {
	if lookup == nil {
		lookup = os.LookupEnv
	}
	s, ok := lookup(name)
	return s, ok && s != ""
}

// All returns every declared variable, sorted by name.
func All() []Info {
	all := slices.Clone(registry)
	slices.SortFunc(all, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Listing returns the registry as a table for people, a header line first.
func Listing() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tTYPE\tDEFAULT\tHELP (accepted)")
	for _, i := range All() {
		def := i.Default
		if def == "" {
			def = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s (%s)\n", i.Name, i.Type, def, i.Help, i.Accepts)
	}
	w.Flush()
	return b.String()
}

// Unknown returns the names in environ (as os.Environ gives it) that begin with DOORBELL_ and are not declared, sorted:
// most likely misspelt, so that a program warns of them. Values are not returned, since one may be a secret.
func Unknown(environ []string) []string {
	var names []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		known := slices.ContainsFunc(registry, func(i Info) bool { return i.Name == name })
		if strings.HasPrefix(name, Prefix) && !known && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
