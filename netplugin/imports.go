// SPDX-License-Identifier: Apache-2.0

package netplugin

// Imports numbers what an endpoint has imported, for its Import and Forget. Numbers begin at 1, and one that was forgotten is
// given again. The zero value is empty. One goroutine at a time uses it.
type Imports[T any] struct {
	all   []imported[T] // by number less 1
	spare []Region
}

type imported[T any] struct {
	it   T
	here bool
}

// Add numbers it.
func (t *Imports[T]) Add(it T) Region {
	if n := len(t.spare); n > 0 {
		r := t.spare[n-1]
		t.spare = t.spare[:n-1]
		t.all[r-1] = imported[T]{it, true}
		return r
	}
	t.all = append(t.all, imported[T]{it, true})
	return Region(len(t.all))
}

// Get is what has that number, and whether something has.
func (t *Imports[T]) Get(r Region) (it T, ok bool) {
	if r <= 0 || int(r) > len(t.all) {
		return it, false
	}
	e := &t.all[r-1]
	return e.it, e.here
}

// Remove forgets what has that number, and says whether something had.
func (t *Imports[T]) Remove(r Region) bool {
	_, ok := t.Get(r)
	if ok {
		t.all[r-1] = imported[T]{}
		t.spare = append(t.spare, r)
	}
	return ok
}
