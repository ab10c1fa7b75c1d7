// SPDX-License-Identifier: Apache-2.0

// Command gpuvet finds in device code what the CPU hides and a GPU does not forgive: package rules says what.
//
//	go run ./tools/gpuvet ./...
//
// Exit: 0 nothing found, 3 something.
package main

import (
	"golang.org/x/tools/go/analysis/singlechecker"

	"github.com/doorbell-net/doorbell/tools/gpuvet/rules"
)

func main() { singlechecker.Main(rules.Analyzer) }
