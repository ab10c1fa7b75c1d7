// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"regexp"
	"testing"
)

// TestTeamwork compiles barriers, Multimem and LLA2A: what runs on the software device is PTX too, and what has to be one
// instruction, or ordered, is so.
func TestTeamwork(t *testing.T) {
	t.Parallel()
	needLLVM(t)
	pkgs, err := Compile(t.Context(), ".", []string{"./testdata/teamwork"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for kernel, want := range map[string][]string{
		"Barriers": {`ld\.acquire\.sys`, `fence\.acq_rel\.sys`, `st\.release\.sys`},
		"Multimem": {`st\.v4\.u32|st\.v4\.b32|st\.global\.v4`, `add\.rn\.f32`},
		"AllToAll": {`st\.relaxed\.sys(\.global)?\.u64`, `ld\.relaxed\.sys(\.global)?\.u64`},
	} {
		body := bodyOf(t, pkgs[0], kernel)
		for _, w := range want {
			if !regexp.MustCompile(w).MatchString(body) {
				t.Errorf("%s has no %s:\n%s", kernel, w, body)
			}
		}
	}
}
