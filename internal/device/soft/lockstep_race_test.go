// SPDX-License-Identifier: Apache-2.0

//go:build lockstep

package soft_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// laneEnv says what stands between a lane's store and the others' loads in TestLanePlanted, in a process of its own.
const laneEnv = "TEST_PLANT_LANE"

var between = map[string]func(gpu.Thread){
	"nothing":         func(gpu.Thread) {},
	"shuffle":         func(t gpu.Thread) { gpu.ShflXor(t, uint32(1), 1) }, // orders no memory
	"vote":            func(t gpu.Thread) { gpu.Any(t, true) },
	"match":           func(t gpu.Thread) { gpu.Match(t, t.Lane()) },
	"election":        func(t gpu.Thread) { gpu.Elect(t) },
	"SyncWarp-clean":  func(t gpu.Thread) { t.SyncWarp() },
	"SyncBlock-clean": func(t gpu.Thread) { t.SyncBlock() },
	"SyncWarps-clean": func(t gpu.Thread) { t.SyncWarps(1, 1) },
}

// TestLanePlanted is run by TestLaneRaces.
func TestLanePlanted(t *testing.T) {
	plant := between[os.Getenv(laneEnv)]
	if plant == nil {
		t.Skipf("%s names no plant: it is run by TestLaneRaces", laneEnv)
	}
	err := launch(t, warp, func(t gpu.Thread) {
		for i := range int64(20) {
			if t.Lane() == 3 {
				*word.Of(t) = i
			}
			plant(t)
			if *word.Of(t) > i {
				panic("a word that nobody wrote")
			}
			t.SyncWarp()
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLaneRaces shows that the race detector sees a missing SyncWarp, and that a shuffle or a vote is none.
func TestLaneRaces(t *testing.T) {
	if !testenv.Race {
		t.Skip("this test binary is built without -race: there is no detector to see the planted races")
	}
	for name := range between {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestLanePlanted$", "-test.v")
		cmd.Env = append(os.Environ(), laneEnv+"="+name, "GORACE=atexit_sleep_ms=0")
		out, err := cmd.CombinedOutput()
		cancel()
		seen, clean := strings.Contains(string(out), "WARNING: DATA RACE"), strings.HasSuffix(name, "-clean")
		if seen == clean || (err == nil) != clean || strings.Contains(string(out), "SKIP") {
			t.Errorf("%s: a race was seen: %v; ended with %v\n%s", name, seen, err, out)
		}
	}
}
