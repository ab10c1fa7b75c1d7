// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Host is the machine that a result was measured on. Fields that the system does not tell stay empty and are left out.
type Host struct {
	Machine  string  `json:"machine,omitempty"` // product name that the firmware gives, which names the cloud's kind too
	CPU      string  `json:"cpu,omitempty"`
	Cores    int     `json:"cores"` // that this process may use
	Arch     string  `json:"arch"`
	Kernel   string  `json:"kernel,omitempty"`
	Go       string  `json:"go"`
	MemBytes int64   `json:"mem_bytes,omitempty"`
	Load1    float64 `json:"load1"`     // 1-minute load average before the run
	StealPct float64 `json:"steal_pct"` // share of all CPU time that the hypervisor took during the run, percent
	Date     string  `json:"date"`      // UTC, RFC 3339
	Hosts    int     `json:"hosts"`     // machines that took part, told by boot ids: namespaces of one are one; 0: not known

	steal, total uint64 // of /proc/stat at the start
	root         fs.FS
}

// StampHost reads the machine's facts. Call it before a run and Finish after.
func StampHost() Host { return stamp(os.DirFS("/"), time.Now()) }

// stamp reads below root, so that tests can give a machine of their own.
func stamp(root fs.FS, now time.Time) Host {
	h := Host{
		Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Go: runtime.Version(),
		Date: now.UTC().Format(time.RFC3339), Hosts: 1, root: root,
	}
	read := func(name string) string {
		b, err := fs.ReadFile(root, name)
		if err != nil {
			return "" // a stamp is a courtesy; what can't be read is left out
		}
		return string(bytes.TrimSpace(b))
	}
	h.Machine = read("sys/class/dmi/id/product_name")
	h.Kernel = read("proc/sys/kernel/osrelease")
	h.CPU = cpuModel(read("proc/cpuinfo"))
	if kb := field(read("proc/meminfo"), "MemTotal"); kb != "" {
		n, err := strconv.ParseInt(strings.TrimSuffix(kb, " kB"), 10, 64)
		if err == nil && n > 0 && n < 1<<52 {
			h.MemBytes = n << 10
		}
	}
	if f := strings.Fields(read("proc/loadavg")); len(f) > 0 {
		if v, err := strconv.ParseFloat(f[0], 64); err == nil {
			h.Load1 = figure(v)
		}
	}
	h.steal, h.total = cpuTimes(read("proc/stat"))
	return h
}

// Finish computes the share of CPU time that was stolen since the stamp.
func (h *Host) Finish() {
	if h.root == nil {
		return
	}
	b, err := fs.ReadFile(h.root, "proc/stat")
	if err != nil {
		return
	}
	steal, total := cpuTimes(string(b))
	if total > h.total && steal >= h.steal {
		h.StealPct = figure(100 * float64(steal-h.steal) / float64(total-h.total))
	}
}

// cpuModel finds the processor's name: x86 has "model name"; arm64 has only numbers of implementer and part.
func cpuModel(cpuinfo string) string {
	if m := field(cpuinfo, "model name"); m != "" {
		return m
	}
	if impl, part := field(cpuinfo, "CPU implementer"), field(cpuinfo, "CPU part"); impl != "" && part != "" {
		return fmt.Sprintf("implementer %s part %s", impl, part)
	}
	return ""
}

// field returns the value of the first "key : value" line.
func field(text, key string) string {
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// cpuTimes returns stolen and total ticks of the "cpu" line: user nice system idle iowait irq softirq steal. Guest time
// behind them is already in user and nice.
func cpuTimes(stat string) (steal, total uint64) {
	f := strings.Fields(strings.SplitN(stat, "\n", 2)[0])
	if len(f) < 9 || f[0] != "cpu" {
		return 0, 0
	}
	for i, s := range f[1:9] {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, 0
		}
		total += v
		if i == 7 {
			steal = v
		}
	}
	return steal, total
}

// String is one line for a table's head.
func (h Host) String() string {
	var p []string
	add := func(s string) {
		if s != "" {
			p = append(p, s)
		}
	}
	if h.Hosts > 1 {
		add(fmt.Sprintf("%d hosts, of which this is one", h.Hosts))
	}
	add(h.CPU)
	add(fmt.Sprintf("%d cores", h.Cores))
	if h.MemBytes > 0 {
		add(Size(h.MemBytes >> 30 << 30))
	}
	if h.Kernel != "" {
		add("Linux " + h.Kernel)
	}
	add(h.Go + " " + h.Arch)
	add(h.Machine)
	add(fmt.Sprintf("load %.2f", h.Load1))
	add(fmt.Sprintf("steal %.1f %%", h.StealPct))
	add(h.Date)
	return strings.Join(p, ", ")
}
