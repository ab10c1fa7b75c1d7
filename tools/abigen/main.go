// SPDX-License-Identifier: Apache-2.0

// Command abigen writes the descriptor's encoder and decoder in Go and its header in C++ from the table in
// internal/abi/layout.go.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/doorbell-net/doorbell/internal/abi/abigen"
)

func main() {
	root := flag.String("root", ".", "root of the module")
	flag.Parse()
	for file, text := range abigen.Files() {
		if err := os.WriteFile(filepath.Join(*root, file), text, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "abigen:", err)
			os.Exit(1)
		}
	}
}
