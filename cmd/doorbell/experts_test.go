// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
)

// Dispatch and combine between processes: each format, each wire and form, by stores, by puts, and by both.
func TestExpertsInProcesses(t *testing.T) {
	for _, flags := range []string{
		"ll --dtype fp8 --wire expert --lsa off", "ll --dtype fp8-pow2 --wire rank --lsa on", "ll --dtype fp8-ue8m0 --wire rank --ranks-per-node 2",
		"ll --dtype bf16 --wire rank --lsa off --net tcp",
		"ht --dtype fp8 --lsa off", "ht --dtype fp8-pow2", "ht --dtype fp8-ue8m0 --ranks-per-node 2 --form rings --ring 2",
		"ht --dtype bf16 --ranks-per-node 2 --net tcp --gating zipf:1.2",
	} {
		t.Run(flags, func(t *testing.T) {
			args := strings.Fields("bench " + flags + " --json -n 4 --tokens 5 --hidden 264 --experts 10 --topk 3 --iters 3 --timeout 15s")
			code, out, errs := command(t, "real", args...)
			r, err := report.Decode([]byte(out))
			rows := 2
			if strings.HasPrefix(flags, "ht ") {
				rows = 3 // also of a dispatch again
			}
			if code != 0 || err != nil || !r.Verified || len(r.Rows) != rows || r.Rows[0].CheckedBytes == 0 {
				t.Errorf("exit %d, verified %v, %q, %d rows, %v\n%s", code, r.Verified, r.Error, len(r.Rows), err, errs)
			}
		})
	}
}
