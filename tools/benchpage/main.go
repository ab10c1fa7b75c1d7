// SPDX-License-Identifier: Apache-2.0

// Command benchpage writes bench/README.md from the results in bench/results.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	root := flag.String("root", ".", "root of the module")
	flag.Parse()
	text, err := page(os.DirFS(filepath.Join(*root, "bench", "results")))
	if err == nil {
		err = os.WriteFile(filepath.Join(*root, "bench", "README.md"), text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchpage:", err)
		os.Exit(1)
	}
}
