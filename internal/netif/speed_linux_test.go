// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestSpeed: what the kernel says in a folder as it makes them, and what cannot be believed.
func TestSpeed(t *testing.T) {
	eth0 := net.Interface{Name: "eth0", Index: 2, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	good := map[string]string{"speed": "25000\n", "ifindex": "2\n", "address": "02:00:00:00:00:01\n"}
	for name, c := range map[string]struct {
		change map[string]string // "": the file is not there
		want   int
	}{
		"known":             {nil, 25000},
		"no carrier":        {map[string]string{"speed": ""}, 0},
		"unknown":           {map[string]string{"speed": "-1\n"}, 0},
		"nonsense":          {map[string]string{"speed": "fast\n"}, 0},
		"another namespace": {map[string]string{"ifindex": "7\n"}, 0},
		"same number there": {map[string]string{"address": "02:00:00:00:00:02\n"}, 0},
		"a tunnel":          {map[string]string{"speed": "10\n", "tun_flags": "0x1001\n"}, 0},
		"gone":              {map[string]string{"speed": "", "ifindex": "", "address": ""}, 0},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "eth0"), 0o755); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{}
		for _, m := range []map[string]string{good, c.change} {
			for f, text := range m {
				files[f] = text
			}
		}
		for f, text := range files {
			if text != "" {
				if err := os.WriteFile(filepath.Join(dir, "eth0", f), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := speed(dir, eth0); got != c.want {
			t.Errorf("%s: %d Mbit/s, want %d", name, got, c.want)
		}
	}
}
