// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/doorbell-net/doorbell/internal/abi"
)

// TestFindsWhatIsPlanted: each planted mistake is found where it is, and nothing beside it.
func TestFindsWhatIsPlanted(t *testing.T) {
	of := "./tools/gpuvet/rules/testdata/"
	analysistest.Run(t, "../../..", Analyzer, of+"spin", of+"nc", of+"scope", of+"atomics")
}

// TestTablesNameFields: the tables of words name fields that abi has.
func TestTablesNameFields(t *testing.T) {
	types := map[string]reflect.Type{}
	for _, v := range []any{abi.DevComm{}, abi.Queue{}, abi.SignalWindow{}, abi.Window{}, abi.WindowPeer{}, abi.QP{}} {
		types[reflect.TypeOf(v).Name()] = reflect.TypeOf(v)
	}
	for _, table := range []map[string]bool{hosts, devices, far} {
		for _, name := range slices.Sorted(maps.Keys(table)) {
			owner, f, _ := strings.Cut(name, ".")
			if s := types[owner]; s == nil {
				t.Errorf("%s: no such structure", name)
			} else if _, ok := s.FieldByName(f); !ok {
				t.Errorf("%s: no such field", name)
			}
		}
	}
	for name := range hosts {
		if devices[name] {
			t.Errorf("%s is in two memories", name)
		}
	}
}
