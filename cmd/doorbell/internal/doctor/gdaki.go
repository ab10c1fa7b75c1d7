// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// What kernels on a GPU need to drive a NIC. The floors are those of NCCL's GDAKI: arXiv 2511.15076 and NCCL's user guide.

// mellanox is the PCI vendor of ConnectX.
const mellanox = 0x15b3

// cards are the PCI devices that Linux's mlx5_core knows, by its table, and whether they are ConnectX-6 Dx or newer.
var cards = map[uint16]struct {
	name string
	fit  bool
}{
	0x1011: {"Connect-IB", false}, 0x1012: {"Connect-IB (virtual function)", false},
	0x1013: {"ConnectX-4", false}, 0x1014: {"ConnectX-4 (virtual function)", false},
	0x1015: {"ConnectX-4 Lx", false}, 0x1016: {"ConnectX-4 Lx (virtual function)", false},
	0x1017: {"ConnectX-5", false}, 0x1018: {"ConnectX-5 (virtual function)", false},
	0x1019: {"ConnectX-5 Ex", false}, 0x101a: {"ConnectX-5 Ex (virtual function)", false},
	0x101b: {"ConnectX-6", false}, 0x101c: {"ConnectX-6 (virtual function)", false},
	0x101d: {"ConnectX-6 Dx", true}, 0x101e: {"ConnectX-6 Dx or newer (virtual function)", true}, 0x101f: {"ConnectX-6 Lx", true},
	0x1021: {"ConnectX-7", true}, 0x1023: {"ConnectX-8", true}, 0x1025: {"ConnectX-9", true}, 0x1027: {"ConnectX-10", true},
	0xa2d2: {"BlueField (ConnectX-5)", false}, 0xa2d3: {"BlueField (ConnectX-5, virtual function)", false},
	0xa2d6: {"BlueField-2 (ConnectX-6 Dx)", true}, 0xa2dc: {"BlueField-3 (ConnectX-7)", true}, 0xa2df: {"BlueField-4 (ConnectX-8)", true},
}

func gdakiNIC(_ context.Context, m *Machine, _ Options) Result {
	dir := filepath.Join(m.Sys, "class", "infiniband")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return Result{Missing, false, "no device in /sys/class/infiniband", ""}
	}
	r := Result{Verdict: Missing, How: "use a ConnectX-6 Dx or newer, or a BlueField-2 or newer"}
	var found []string
	for _, e := range entries {
		at := func(name string) string { return m.read(dir, e.Name(), "device", name) }
		vendor, ok1 := parsePCI(at("vendor"))
		device, ok2 := parsePCI(at("device"))
		card, known := cards[device]
		switch {
		case !ok1 || !ok2:
			found = append(found, e.Name()+" of no PCI card")
		case vendor != mellanox || !known:
			found = append(found, fmt.Sprintf("%s of a card that is not known (%04x:%04x)", e.Name(), vendor, device))
		default:
			found = append(found, e.Name()+" "+card.name)
			if card.fit {
				r.Verdict, r.How = OK, ""
			}
		}
	}
	r.Found = strings.Join(found, ", ")
	return r
}

// driverFloor is the first branch of the NVIDIA driver that is for CUDA 12.2 (CUDA's release notes).
const driverFloor = 535

// noDriver is what the checks say that need one; that of the GPU says how to get it.
var noDriver = Result{Missing, false, "the NVIDIA driver is not loaded", ""}

func gdakiDriver(_ context.Context, m *Machine, _ Options) Result {
	version := m.read(m.Sys, "module", "nvidia", "version")
	major, minor, ok := parseKernel(version)
	switch {
	case version == "":
		return noDriver
	case !ok:
		return Result{Missing, false, fmt.Sprintf("version %q is none of an NVIDIA driver", version), ""}
	case major < driverFloor:
		return Result{Missing, false, fmt.Sprintf("NVIDIA driver %d.%d, older than CUDA 12.2's", major, minor), fmt.Sprintf("install NVIDIA driver %d or newer", driverFloor)}
	}
	return Result{OK, false, fmt.Sprintf("NVIDIA driver %d.%d, for CUDA 12.2 or newer", major, minor), ""}
}

func gdakiMemory(_ context.Context, m *Machine, _ Options) Result {
	loaded := func(module string) bool {
		st, err := os.Stat(filepath.Join(m.Sys, "module", module))
		return err == nil && st.IsDir()
	}
	if !loaded("nvidia") {
		return noDriver
	}
	for _, module := range []string{"nvidia_peermem", "nv_peer_mem"} {
		if loaded(module) {
			return Result{OK, false, module + " is loaded", ""}
		}
	}
	how := "modprobe nvidia_peermem, or use linux 6.1 or newer and NVIDIA's open kernel modules"
	release := m.read(m.Proc, "sys", "kernel", "osrelease")
	major, minor, ok := parseKernel(release)
	switch open := strings.Contains(m.read(m.Proc, "driver", "nvidia", "version"), "Open Kernel Module"); {
	case !ok || major < 6 || major == 6 && minor < 1:
		return Result{Missing, false, "nvidia_peermem is not loaded, and linux " + release + " is too old for dma-buf", how}
	case !open:
		return Result{Missing, false, "nvidia_peermem is not loaded, and the NVIDIA driver gives no dma-buf: it is not the open one", how}
	}
	return Result{OK, false, "dma-buf, by linux " + release + " and NVIDIA's open kernel modules", ""}
}

// gdakiMapping looks at both who has to let kernels store to a doorbell register: the NIC's driver, and NVIDIA's, which maps
// registers of other devices for who administers the machine, or for anybody if it was told so.
func gdakiMapping(_ context.Context, m *Machine, _ Options) Result {
	nics, err := filepath.Glob(filepath.Join(m.Dev, "infiniband", "uverbs*"))
	if err != nil || len(nics) == 0 {
		return Result{Missing, false, "no device in /dev/infiniband", ""}
	}
	for _, path := range nics {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return Result{Missing, false, err.Error(), "let this user read and write it (containers: --device /dev/infiniband)"}
		}
		f.Close()
	}
	params := m.read(m.Proc, "driver", "nvidia", "params")
	caps, _ := parseCapabilities(m.read(m.Proc, "self", "status"))
	switch {
	case params == "":
		return noDriver
	case parseOverride(params):
		return Result{OK, false, "the NVIDIA driver maps registers for anybody (PeerMappingOverride=1)", ""}
	case caps&capSysAdmin != 0:
		return Result{OK, false, "the NVIDIA driver maps registers for this process, which may administer the machine (CAP_SYS_ADMIN)", ""}
	}
	return Result{Missing, false, "the NVIDIA driver maps no registers of other devices for this user",
		`options nvidia NVreg_RegistryDwords="PeerMappingOverride=1;" in /etc/modprobe.d and a reload of the module, after which any user may map them; or run with CAP_SYS_ADMIN`}
}

// parsePCI reads a number as /sys has it for a PCI device: "0x15b3".
func parsePCI(s string) (id uint16, ok bool) {
	digits, ok := strings.CutPrefix(s, "0x")
	n, err := strconv.ParseUint(digits, 16, 16)
	return uint16(n), ok && err == nil
}

const capSysAdmin = 1 << 21

// parseCapabilities finds the effective capabilities in /proc/self/status.
func parseCapabilities(s string) (bits uint64, ok bool) {
	for line := range strings.Lines(s) {
		if digits, found := strings.CutPrefix(line, "CapEff:"); found {
			n, err := strconv.ParseUint(strings.TrimSpace(digits), 16, 64)
			if err != nil {
				return 0, false
			}
			return n, true
		}
	}
	return 0, false
}

// parseOverride finds, in /proc/driver/nvidia/params, whether the module was told to map registers of other devices for
// anybody: RegistryDwords: "PeerMappingOverride=1;".
func parseOverride(s string) bool {
	for line := range strings.Lines(s) {
		words, found := strings.CutPrefix(line, "RegistryDwords:")
		for word := range strings.SplitSeq(strings.Trim(words, "\" \n"), ";") {
			if found && strings.TrimSpace(word) == "PeerMappingOverride=1" {
				return true
			}
		}
	}
	return false
}
