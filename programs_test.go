// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// program is what each rank does, the same in one process and in several.
type program struct {
	name string
	run  func(r *rank)
}

// programs have every operation of gin.
var programs = []program{
	{"puts", progPuts}, {"zero", progZero}, {"values", progValues}, {"flush", progFlush},
	{"wrap", progWrap}, {"rolling", progRolling}, {"reset", progReset}, {"fresh", progFresh},
	{"barriers", progBarriers}, {"lsa barrier", progLSABarrier}, {"lsa", progLSA}, {"bad team", progBadTeam},
	{"hybrid", progHybrid}, {"fence get", progFenceGet}, {"multimem", progMultimem}, {"bad multimem", progBadMultimem},
	{"lla2a", progLLA2A}, {"lla2a block", progLLA2ABlock}, {"bad lla2a", progBadLLA2A},
	{"coop", progCoop}, {"burst", progBurst}, {"contexts", progContexts}, {"rail", progRail}, {"large", progLarge},
	{"gets", progGets}, {"requests", progRequests}, {"fence over contexts", progFenceContexts},
	{"signals at addresses", progSignalsAt}, {"shadows", progShadows}, {"hints", progHints},
}

// world is a job that the programs run in.
type world struct {
	ranks, perNode int
	progress       string
	backend        string
}

func (w world) String() string {
	s := fmt.Sprintf("%d ranks", w.ranks)
	if w.perNode > 0 {
		s += fmt.Sprintf(", %d a node", w.perNode)
	}
	if w.progress != "" {
		s += ", " + w.progress
	}
	if w.backend != "" {
		s += ", " + w.backend
	}
	return s
}

var worlds = []world{
	{ranks: 1}, {ranks: 2}, {ranks: 2, progress: "thread"}, {ranks: 3, perNode: 1}, {ranks: 4, perNode: 2}, {ranks: 5}, {ranks: 8, perNode: 4},
	{ranks: 1, backend: "gdaki"}, {ranks: 2, backend: "gdaki"}, {ranks: 2, progress: "thread", backend: "gdaki"}, {ranks: 4, perNode: 2, backend: "gdaki"},
}

// TestPrograms runs every operation over worlds of many sizes and shapes in this process.
func TestPrograms(t *testing.T) {
	for _, w := range worlds {
		if (testenv.Race || gpu.WarpSize > 1) && w.ranks > 4 && !testenv.Long() {
			continue // ranks that wait for a core: half the time of them all, and neither a race nor a mask that four do not have
		}
		t.Run(w.String(), func(t *testing.T) {
			cs := local(t, w.ranks, doorbell.Options{RanksPerNode: w.perNode, Progress: w.progress, Backend: w.backend})
			for _, p := range programs {
				if p.name == "large" && w.ranks > 3 && !testenv.Long() {
					continue // the cuts do not depend on how many ranks there are
				}
				if !t.Run(p.name, func(t *testing.T) { each(t, cs, p.run) }) {
					return // its ranks are of no use any more
				}
			}
		})
	}
}

// TestFewProcessors runs all-to-all traffic of eight ranks on one processor, and on more than there are.
func TestFewProcessors(t *testing.T) {
	for _, procs := range []int{1, 8} {
		t.Run(fmt.Sprint(procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			each(t, local(t, 8, doorbell.Options{RanksPerNode: 2}), func(r *rank) {
				progContexts(r)
				progBarriers(r)
			})
		})
	}
}
