// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/doorbell-net/doorbell/internal/proxy"
)

func system(_ context.Context, m *Machine, _ Options) Result {
	if m.OS != "linux" {
		return Result{Limited, false, m.OS + "/" + m.Arch + ": ranks within one process (--local); the rest compiles and is untested", "use linux on amd64 or arm64"}
	}
	release := m.read(m.Proc, "sys", "kernel", "osrelease")
	r := Result{Verdict: OK, Found: "linux " + release + ", " + m.Arch}
	switch major, minor, ok := parseKernel(release); {
	case m.Arch != "amd64" && m.Arch != "arm64":
		r.Verdict, r.How = Limited, "use amd64 or arm64: others are untested"
	case !ok:
		r.Verdict, r.Found, r.How = Limited, "linux of unknown release, "+m.Arch, "mount /proc"
	case major < 5 || major == 5 && minor < 3: // pidfd_open
		r.Verdict, r.How = Limited, "use linux 5.3 or newer: with an older one, what left a rank's process group outlives the job"
	}
	return r
}

func cores(_ context.Context, m *Machine, o Options) Result {
	list, err := m.CPUs()
	if err != nil || len(list) == 0 {
		return Result{Limited, false, fmt.Sprintf("not known (%v)", err), "allow this process to read its affinity"}
	}
	n := len(list)
	found := plural(n, "core")
	q := m.quota()
	if q > 0 && q < float64(n) {
		n = max(int(q), 1)
		found += fmt.Sprintf(", of which a control group grants %.4g", q)
	}
	if o.Ranks == 0 {
		return Result{OK, false, found, ""}
	}
	mode := "assisted"
	if proxy.Choose(proxy.Auto, len(list), o.Ranks) == proxy.Thread {
		mode = "thread"
	}
	found += fmt.Sprintf(", %s on this host, progress=%s", plural(o.Ranks, "rank"), mode)
	if o.Ranks > n {
		return Result{Limited, false, found + ": ranks share cores, and each wait costs a switch",
			fmt.Sprintf("use at most %s on this host, or more cores", plural(n, "rank"))}
	}
	return Result{OK, false, found, ""}
}

// memoryPerRank is what a rank should find: queues, and windows of the size that benches take by default. In bytes.
const memoryPerRank = 256 << 20

func memory(_ context.Context, m *Machine, o Options) Result {
	avail, ok := m.MemAvailable()
	if !ok {
		return Result{Limited, false, "not known", "mount /proc"}
	}
	found := size(avail) + " available, control groups' limits counted"
	if want := uint64(max(o.Ranks, 1)) * memoryPerRank; avail < want {
		return Result{Limited, false, found, fmt.Sprintf("have %s for each rank, %s in all, or use smaller windows", size(memoryPerRank), size(want))}
	}
	return Result{OK, false, found, ""}
}

func memlock(_ context.Context, m *Machine, _ Options) Result {
	n, ok := parseMemlock(m.read(m.Proc, "self", "limits"))
	switch {
	case !ok:
		return Result{Limited, false, "not known", "mount /proc"}
	case n == unlimited:
		return Result{OK, false, "not limited", ""}
	}
	return Result{Limited, false, "at most " + size(n) + " of locked memory; networks in use now need none",
		"ulimit -l unlimited (systemd: LimitMEMLOCK=infinity; containers: --ulimit memlock=-1)"}
}

func shared(_ context.Context, m *Machine, _ Options) Result {
	if err := m.Shared(); err != nil {
		return Result{Missing, true, err.Error(), "allow memfd_create and sealing (linux 3.17; a container's filter may forbid them), or use ranks in one process: --local"}
	}
	return Result{OK, true, "memfd works and is sealed against shrinking; /dev/shm is not used, its size does not matter", ""}
}

func futex(_ context.Context, m *Machine, _ Options) Result {
	switch err := m.Futex(); {
	case m.OS != "linux":
		return Result{Limited, false, "there on linux only; waits sleep by the clock", "use linux"}
	case err != nil:
		return Result{Limited, false, err.Error(), "allow the futex system call"}
	}
	return Result{OK, false, "sleeps and wakes", ""}
}

func membarrier(_ context.Context, m *Machine, _ Options) Result {
	if err := m.Membarrier(); err != nil {
		return Result{Limited, false, err.Error() + "; an idle proxy may wake up to 10 ms late", "use linux 4.14 or newer, and allow the membarrier system call"}
	}
	return Result{OK, false, "private expedited fence works", ""}
}

func gpu(_ context.Context, m *Machine, _ Options) Result {
	found, unfit, err := m.GPUs()
	if err != nil {
		return Result{Missing, false, err.Error(), "install the NVIDIA driver (libcuda.so.1; no toolkit is needed) where there is a GPU; kernels run as goroutines meanwhile"}
	}
	r := Result{Verdict: OK}
	for i, text := range found {
		if unfit[i] != nil {
			text, r.Verdict, r.How = unfit[i].Error(), Limited, "use another GPU: CUDA_VISIBLE_DEVICES names those that a process sees"
		}
		r.Found += text + "\n"
	}
	r.Found += "kernels run there with --device cuda"
	return r
}

func rdma(_ context.Context, m *Machine, _ Options) Result {
	dir := filepath.Join(m.Sys, "class", "infiniband")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return Result{Missing, false, "no device in /sys/class/infiniband", ""}
	}
	var found []string
	for _, e := range entries {
		ports, err := os.ReadDir(filepath.Join(dir, e.Name(), "ports"))
		if err != nil {
			ports = nil // a device without ports is told as such
		}
		line := e.Name()
		for _, p := range ports {
			at := func(name string) string { return m.read(dir, e.Name(), "ports", p.Name(), name) }
			_, state, _ := strings.Cut(at("state"), ": ") // "4: ACTIVE"
			line += fmt.Sprintf(", port %s %s %s", p.Name(), at("link_layer"), strings.ToLower(state))
		}
		found = append(found, line)
	}
	slices.Sort(found)
	return Result{Limited, false, strings.Join(found, "\n") + "\nfor kernels alone, by --backend gdaki, which has run on none yet", ""}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// size writes bytes in the largest unit that leaves a whole part, with one decimal where it is short.
func size(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	if s := fmt.Sprintf("%.1f", f); f < 10 && !strings.HasSuffix(s, ".0") {
		return s + " " + units[i]
	}
	return fmt.Sprintf("%.0f %s", f, units[i])
}
