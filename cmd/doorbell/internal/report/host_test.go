// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func TestStamp(t *testing.T) {
	root := fstest.MapFS{
		"sys/class/dmi/id/product_name": {Data: []byte("Example Box\n")},
		"proc/sys/kernel/osrelease":     {Data: []byte("6.1.2-test\n")},
		"proc/cpuinfo":                  {Data: []byte("processor\t: 0\nmodel name\t: Fast CPU\nprocessor\t: 1\nmodel name\t: Other\n")},
		"proc/meminfo":                  {Data: []byte("MemTotal:       16384 kB\nMemFree: 1 kB\n")},
		"proc/loadavg":                  {Data: []byte("0.42 0.1 0.1 1/90 5905\n")},
		"proc/stat":                     {Data: []byte("cpu  10 0 10 70 0 0 0 10 5 0\ncpu0 1 1\n")},
	}
	h := stamp(root, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	if h.Machine != "Example Box" || h.Kernel != "6.1.2-test" || h.CPU != "Fast CPU" || h.MemBytes != 16<<20 || h.Load1 != 0.42 ||
		h.Date != "2026-01-02T03:04:05Z" || h.Cores < 1 || h.Hosts != 1 {
		t.Errorf("%+v", h)
	}
	root["proc/stat"] = &fstest.MapFile{Data: []byte("cpu  20 0 20 130 0 0 0 30 5 0\n")}
	h.Finish()
	if h.StealPct != 20 {
		t.Errorf("20 of 100 ticks were stolen, it says %v %%", h.StealPct)
	}
	root["proc/stat"] = &fstest.MapFile{Data: []byte("cpu  1 2\n")}
	h.Finish()
	if h.StealPct != 20 {
		t.Errorf("a short line changed the figure to %v", h.StealPct)
	}
}

func TestStampKnowsNothing(t *testing.T) {
	h := stamp(fstest.MapFS{"proc/cpuinfo": {Data: []byte("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n")},
		"proc/meminfo": {Data: []byte("MemTotal: lots\n")}}, time.Unix(0, 0))
	h.Finish()
	if h.CPU != "implementer 0x41 part 0xd4f" || h.MemBytes != 0 || h.StealPct != 0 || h.Machine != "" {
		t.Errorf("%+v", h)
	}
	(&Host{}).Finish()
}

func TestStampHere(t *testing.T) {
	h := StampHost()
	h.Finish()
	if h.Go == "" || h.Arch == "" || h.Cores < 1 || !strings.Contains(h.String(), h.Go) {
		t.Errorf("%+v", h)
	}
}
