// SPDX-License-Identifier: Apache-2.0

// Package topo says which ranks form a node.
package topo

import "fmt"

// LSASize is the size of the LSA teams: consecutive ranks that all reach each other's memory, as large as possible and
// of one size everywhere. reach[i][j] says whether rank i could map memory of rank j. perNode, if not 0, is the size
// asked for; it is refused when it does not divide the ranks or when ranks of one such node do not reach each other.
func LSASize(reach [][]bool, perNode int) (int, error) {
	n := len(reach)
	for i := range reach {
		if len(reach[i]) != n {
			return 0, fmt.Errorf("nodes: rank %d tells of %d ranks, there are %d", i, len(reach[i]), n)
		}
	}
	if n == 0 {
		return 0, fmt.Errorf("nodes: no ranks")
	}
	if perNode != 0 {
		if perNode < 1 || n%perNode != 0 {
			return 0, fmt.Errorf("nodes: %d ranks per node asked for; a divisor of the %d ranks is accepted", perNode, n)
		}
		if i, j, ok := cut(reach, perNode); !ok {
			return 0, fmt.Errorf("nodes: %d ranks per node asked for, but ranks %d and %d do not reach each other's memory", perNode, i, j)
		}
		return perNode, nil
	}
	for size := n; size > 1; size-- {
		if n%size == 0 {
			if _, _, ok := cut(reach, size); ok {
				return size, nil
			}
		}
	}
	return 1, nil
}

// cut says whether teams of that size reach each other inside, and names two ranks that do not.
func cut(reach [][]bool, size int) (i, j int, ok bool) {
	for i := range reach {
		first := i / size * size
		for j := first; j < first+size; j++ {
			if i != j && !reach[i][j] {
				return i, j, false
			}
		}
	}
	return 0, 0, true
}
