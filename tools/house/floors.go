// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"slices"
	"strings"
)

// Folder is a line of the table of floors. It stands for the folder and everything under it that has no line of its own;
// "." stands for the module root alone.
type Folder struct {
	Path string
	// Program marks a folder whose packages may import one another as they like: a program on top, its parts under it.
	Program bool
	// Only limits what is imported of the subfolders of a folder: of each key's, those listed and no other.
	Only map[string][]string
}

// Floor is a number and its folders, from the top of the list to its bottom.
type Floor struct {
	Number  int
	Folders []Folder
}

// place is where a folder stands: later is lower.
type place struct {
	Folder
	floor, rank int
}

func find(floors []Floor, dir string) (place, bool) {
	var best place
	found := false
	rank := 0
	for _, fl := range floors {
		for _, f := range fl.Folders {
			rank++
			if (dir == f.Path || f.Path != "." && within(dir, f.Path)) && (!found || len(f.Path) > len(best.Path)) {
				best, found = place{f, fl.Number, rank}, true
			}
		}
	}
	return best, found
}

// FloorOf returns the number of the floor that dir stands on, and false if the table does not know it.
func FloorOf(floors []Floor, dir string) (int, bool) {
	p, ok := find(floors, dir)
	return p.floor, ok
}

// CheckFloors finds imports that do not go down, and folders that the table lacks. floors begins with the highest. Test
// files are exempt.
func CheckFloors(t *Tree, floors []Floor) []Finding {
	var found []Finding
	for _, dir := range t.Dirs() {
		if _, ok := find(floors, dir); !ok {
			found = append(found, Finding{dir, 0, "this folder is on no floor: add it to `floors` in house_test.go, below whatever imports it and above " +
				"whatever it imports (design.md section 1 says what each floor is for)"})
		}
	}
	for _, f := range t.Files {
		if f.Test() {
			continue
		}
		from, ok := find(floors, f.Dir())
		if !ok {
			continue
		}
		for _, im := range t.Imports(f) {
			if im.Dir == "" || im.Dir == f.Dir() {
				continue
			}
			if why := refuse(floors, from, f.Dir(), im.Dir); why != "" {
				found = append(found, Finding{f.Path, im.Line, fmt.Sprintf("%s may not import %s: %s", f.Dir(), im.Dir, why)})
			}
		}
	}
	return found
}

// refuse says why the folder from, which stands at fp, may not import to; "" if it may.
func refuse(floors []Floor, fp place, from, to string) string {
	tp, ok := find(floors, to)
	if !ok {
		return "that folder is on no floor"
	}
	for parent, only := range fp.Only {
		if to != parent && within(to, parent) && !slices.Contains(only, strings.TrimPrefix(to, parent+"/")) {
			return fmt.Sprintf("of %s it imports only %s", parent, strings.Join(only, ", "))
		}
	}
	switch {
	case fp.Program && tp.Path == fp.Path:
		return ""
	case from != "." && to != "." && within(from, to):
		return "" // a child imports its parent
	case from != "." && to != "." && within(to, from):
		return "a folder does not import what stands under it"
	case tp.Path == fp.Path:
		return "two folders under " + fp.Path + " need lines of their own in `floors` (house_test.go) to say which is lower"
	case tp.floor > fp.floor:
		return fmt.Sprintf("it stands on floor %d, above floor %d", tp.floor, fp.floor)
	case tp.rank < fp.rank:
		return fmt.Sprintf("it stands higher in the list of floor %d", fp.floor)
	}
	return ""
}
