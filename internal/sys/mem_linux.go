// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemAvailable says how many bytes this process could still take: what the kernel calls available, or what the
// tightest memory limit of its control group leaves, whichever is less. ok is false where neither can be read.
func MemAvailable() (avail uint64, ok bool) { return memAvailable("/proc", "/sys/fs/cgroup") }

func memAvailable(proc, cgroup string) (avail uint64, ok bool) {
	if b, err := os.ReadFile(filepath.Join(proc, "meminfo")); err == nil {
		sc := bufio.NewScanner(bytes.NewReader(b))
		for sc.Scan() {
			f := strings.Fields(sc.Text())
			if len(f) >= 2 && f[0] == "MemAvailable:" {
				if kib, err := strconv.ParseUint(f[1], 10, 64); err == nil {
					avail, ok = kib<<10, true
				}
			}
		}
	}
	b, err := os.ReadFile(filepath.Join(proc, "self", "cgroup"))
	if err != nil {
		return avail, ok
	}
	for line := range strings.Lines(string(b)) {
		// Version 2 has one line, "0::/path"; its limits count at each level up to the root.
		path, found := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !found {
			continue
		}
		for p := filepath.Clean("/" + path); ; p = filepath.Dir(p) {
			limit, lok := readUint(filepath.Join(cgroup, p, "memory.max"))
			used, uok := readUint(filepath.Join(cgroup, p, "memory.current"))
			if lok && uok {
				left := limit - min(used, limit)
				if !ok || left < avail {
					avail, ok = left, true
				}
			}
			if p == "/" {
				break
			}
		}
	}
	return avail, ok
}

func readUint(file string) (uint64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return v, err == nil
}
