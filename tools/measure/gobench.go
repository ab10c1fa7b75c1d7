// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// gobench is the time of an operation of one of gin's Go benchmarks: two ranks of one process.
func gobench(name string) probe {
	text := fmt.Sprintf("go test ./gin -run ^$ -bench '^Benchmark%s$' -benchtime 0.3s", name)
	return probe{text: text, run: func(e *env) (float64, error) {
		exe := filepath.Join(e.dir, "gin.test")
		if _, err := os.Stat(exe); err != nil {
			if err := sh("go", "test", "-c", "-o", exe, "./gin"); err != nil {
				return 0, err
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		pattern := "^Benchmark" + strings.ReplaceAll(name, "/", "$/^") + "$"
		out, err := exec.CommandContext(ctx, exe, "-test.run", "^$", "-test.bench", pattern, "-test.benchtime", "0.3s").Output()
		if err != nil {
			return 0, fmt.Errorf("run %s: %w", text, err)
		}
		for line := range strings.Lines(string(out)) {
			f := strings.Fields(line)
			var ns float64
			if len(f) > 3 && f[3] == "ns/op" && strings.HasPrefix(f[0], "Benchmark") {
				if _, err := fmt.Sscan(f[2], &ns); err != nil {
					return 0, fmt.Errorf("read %q: %w", line, err)
				}
				return ns, nil
			}
		}
		return 0, fmt.Errorf("%s printed no time", text)
	}}
}
