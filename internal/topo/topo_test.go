// SPDX-License-Identifier: Apache-2.0

package topo

import (
	"strings"
	"testing"
)

// hosts makes ranks on hosts of the sizes given; ranks reach those of their own host.
func hosts(sizes ...int) [][]bool {
	var host []int
	for h, n := range sizes {
		for range n {
			host = append(host, h)
		}
	}
	reach := make([][]bool, len(host))
	for i := range reach {
		reach[i] = make([]bool, len(host))
		for j := range host {
			reach[i][j] = host[i] == host[j]
		}
	}
	return reach
}

func TestLSASize(t *testing.T) {
	for _, c := range []struct {
		hosts   []int
		perNode int
		want    int
		refusal string
	}{
		{hosts: []int{1}, want: 1},
		{hosts: []int{4}, want: 4},
		{hosts: []int{4}, perNode: 2, want: 2},
		{hosts: []int{4}, perNode: 1, want: 1},
		{hosts: []int{4}, perNode: 3, refusal: "divisor of the 4 ranks"},
		{hosts: []int{4}, perNode: -1, refusal: "divisor"},
		{hosts: []int{2, 2}, want: 2},
		{hosts: []int{8, 4}, want: 4},
		{hosts: []int{3, 5}, want: 1},
		{hosts: []int{2, 2}, perNode: 4, refusal: "ranks 0 and 2 do not reach"},
		{hosts: nil, refusal: "no ranks"},
	} {
		got, err := LSASize(hosts(c.hosts...), c.perNode)
		if c.refusal != "" {
			if err == nil || !strings.Contains(err.Error(), c.refusal) {
				t.Errorf("%v per node %d: got %d, %v; want an error with %q", c.hosts, c.perNode, got, err, c.refusal)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%v per node %d: got %d, %v; want %d", c.hosts, c.perNode, got, err, c.want)
		}
	}
	oneWay := hosts(2)
	oneWay[1][0] = false
	if got, err := LSASize(oneWay, 0); err != nil || got != 1 {
		t.Errorf("one-way reach: got %d, %v; want 1", got, err)
	}
	if _, err := LSASize([][]bool{{true}, {true, true}}, 0); err == nil {
		t.Error("a table with a short row accepted")
	}
}
