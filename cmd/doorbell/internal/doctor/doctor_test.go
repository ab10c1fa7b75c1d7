// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/netif"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// tree writes files below a new folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		put(t, root, name, text)
	}
	return root
}

// put writes a file of a tree, and drop removes what is at a place of one.
func put(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func drop(t *testing.T, root, name string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
		t.Fatal(err)
	}
}

const limits = `Limit                     Soft Limit           Hard Limit           Units
Max address space         unlimited            unlimited            bytes
Max locked memory         %-20s unlimited            bytes
`

func iface(name string, up bool, mtu int, addrs ...string) netif.Interface {
	x := netif.Interface{Name: name, Up: up, Loopback: name == "lo", MTU: mtu}
	for _, a := range addrs {
		x.Addrs = append(x.Addrs, netip.MustParseAddr(a))
	}
	return x
}

// answers makes a Try in which the interfaces that are named stay silent.
func answers(silent ...string) func(context.Context, []netif.Interface, string, time.Duration) []netif.Attempt {
	return func(_ context.Context, all []netif.Interface, target string, bound time.Duration) (out []netif.Attempt) {
		for _, x := range all {
			for _, a := range netif.Addresses([]netif.Interface{x}) {
				t := netif.Attempt{Interface: x.Name, From: a, To: target, Answered: true, Refused: target != ""}
				if strings.Contains(strings.Join(silent, " "), x.Name) {
					t = netif.Attempt{Interface: x.Name, From: a, To: target, Err: fmt.Errorf("no answer within %v", bound)}
				} else if target != "" && a.Is6() {
					t = netif.Attempt{Interface: x.Name, From: a, To: target, Err: netif.ErrFamily}
				}
				out = append(out, t)
			}
		}
		return out
	}
}

// server is a machine that has all there is.
func server(t *testing.T) Machine {
	return Machine{
		OS: "linux", Arch: "amd64", Bound: 2 * time.Second, Env: env.From(nil),
		Proc: tree(t, map[string]string{"sys/kernel/osrelease": "6.8.0-45-generic\n", "self/cgroup": "0::/user.slice\n", "self/limits": fmt.Sprintf(limits, "unlimited"),
			"self/status": "Name:\tdoorbell\nCapEff:\t0000000000000000\n", "driver/nvidia/params": "DmaRemapPeerMmio: 1\nRegistryDwords: \"PeerMappingOverride=1;\"\n"}),
		Dev: tree(t, map[string]string{"infiniband/uverbs0": "", "infiniband/uverbs1": ""}),
		Sys: tree(t, map[string]string{
			"fs/cgroup/user.slice/cpu.max":               "max 100000\n",
			"class/infiniband/mlx5_0/ports/1/state":      "4: ACTIVE\n",
			"class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
			"class/infiniband/mlx5_1/ports/1/state":      "1: DOWN\n",
			"class/infiniband/mlx5_1/ports/1/link_layer": "Ethernet\n",
			"class/infiniband/mlx5_0/device/vendor":      "0x15b3\n",
			"class/infiniband/mlx5_0/device/device":      "0x1021\n",
			"class/infiniband/mlx5_1/device/vendor":      "0x15b3\n",
			"class/infiniband/mlx5_1/device/device":      "0x101b\n",
			"module/nvidia/version":                      "570.86.15\n",
			"module/nvidia_peermem/refcnt":               "0\n",
		}),
		CPUs:         func() ([]int, error) { return make([]int, 64), nil },
		MemAvailable: func() (uint64, bool) { return 200 << 30, true },
		Shared:       func() error { return nil },
		Futex:        func() error { return nil },
		Membarrier:   func() error { return nil },
		GPUs: func() ([]string, []error, error) {
			return []string{"GPU 0: NVIDIA H200, 132 multiprocessors, 139 GiB, compute capability 9.0, driver for CUDA 13.0"}, []error{nil}, nil
		},
		Interfaces: func() ([]netif.Interface, error) {
			return []netif.Interface{iface("lo", true, 65536, "127.0.0.1", "::1"), iface("eth0", true, 9000, "10.0.0.1", "2001:db8::1", "fe80::1%eth0"),
				iface("eth1", false, 1500, "10.1.0.1"), iface("docker0", true, 1500, "172.17.0.1")}, nil
		},
		Try: answers(),
		Lookup: func(_ context.Context, network, host string) ([]netip.Addr, error) {
			if a, err := netip.ParseAddr(host); err == nil {
				return []netip.Addr{a}, nil
			}
			return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
		},
	}
}

// container is a small one on an old kernel, behind a strict filter.
func container(t *testing.T) Machine {
	m := server(t)
	m.Proc = tree(t, map[string]string{"sys/kernel/osrelease": "4.9.1\n", "self/cgroup": "1:cpu:/x\n0::/a/b\n", "self/limits": fmt.Sprintf(limits, "65536")})
	m.Sys = tree(t, map[string]string{"fs/cgroup/cpu.max": "400000 100000", "fs/cgroup/a/cpu.max": "150000 100000\n", "fs/cgroup/a/b/cpu.max": "max 100000\n"})
	m.Dev = tree(t, nil)
	m.CPUs = func() ([]int, error) { return []int{3, 7}, nil }
	m.MemAvailable = func() (uint64, bool) { return 700 << 20, true }
	m.Shared = func() error { return errors.New("make shared memory: memfd_create: operation not permitted") }
	m.Futex = func() error { return errors.New("a futex sleep returned 9000 times in 5 ms instead of sleeping") }
	m.GPUs = func() ([]string, []error, error) {
		return nil, nil, errors.New("libcuda.so.1 cannot be loaded: no such file: device not available")
	}
	m.Membarrier = func() error { return errors.New("membarrier: operation not permitted") }
	m.Interfaces = func() ([]netif.Interface, error) {
		return []netif.Interface{iface("lo", true, 65536, "127.0.0.1"), iface("eth0", true, 1500, "10.0.0.1"), iface("usb0", true, 1500, "169.254.1.1")}, nil
	}
	m.Try = answers("eth0")
	m.Lookup = func(context.Context, string, string) ([]netip.Addr, error) { return nil, errors.New("no such host") }
	return m
}

func TestGolden(t *testing.T) {
	good := filepath.Join(tree(t, map[string]string{"token": strings.Repeat("x", 44) + "\n"}), "token")
	bad := filepath.Join(tree(t, map[string]string{"token": "x"}), "token")
	if err := os.Chmod(bad, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		m    Machine
		o    Options
		ok   bool
	}{
		{"server", server(t), Options{Ranks: 8, Rendezvous: "node0:4711", TokenFile: good, Interfaces: "^docker"}, true},
		{"alone", server(t), Options{}, true},
		{"container", container(t), Options{Ranks: 4, Rendezvous: "node0:4711", TokenFile: bad}, false},
	} {
		r := Run(context.Background(), c.m, c.o)
		var text, object bytes.Buffer
		if err := errors.Join(r.WriteText(&text), r.WriteJSON(&object)); err != nil || r.OK != c.ok {
			t.Errorf("%s: ok %v, %v", c.name, r.OK, err)
		}
		var back Report
		if err := json.Unmarshal(object.Bytes(), &back); err != nil || fmt.Sprint(back) != fmt.Sprint(r) {
			t.Errorf("%s: %v: %s", c.name, err, object.String())
		}
		got := text.String() + "\n" + object.String()
		got = strings.NewReplacer(good, "GOOD", bad, "BAD").Replace(got)
		path := filepath.Join("testdata", c.name+".txt")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: run with -update if that is meant. got:\n%s", c.name, got)
		}
	}
}

// TestVerdicts: one change to a machine, one verdict.
func TestVerdicts(t *testing.T) {
	job := Options{Rendezvous: "node0:4711"}
	for name, c := range map[string]struct {
		change func(*Machine)
		o      Options
		check  string
		want   Verdict
		said   string
	}{
		"mac":             {func(m *Machine) { m.OS = "darwin" }, Options{}, "system", Limited, "--local"},
		"other arch":      {func(m *Machine) { m.Arch = "riscv64" }, Options{}, "system", Limited, "amd64 or arm64"},
		"no proc":         {func(m *Machine) { m.Proc = "/nonexistent" }, Options{}, "system", Limited, "mount /proc"},
		"no limits":       {func(m *Machine) { m.Proc = "/nonexistent" }, Options{}, "memlock", Limited, "not known"},
		"no affinity":     {func(m *Machine) { m.CPUs = func() ([]int, error) { return nil, errors.New("not allowed") } }, Options{}, "cores", Limited, "not allowed"},
		"no memory known": {func(m *Machine) { m.MemAvailable = func() (uint64, bool) { return 0, false } }, Options{}, "memory", Limited, "not known"},
		"no interfaces": {func(m *Machine) {
			m.Interfaces = func() ([]netif.Interface, error) { return nil, errors.New("refused") }
		}, job, "interfaces", Missing, "refused"},
		"unknown one":    {func(m *Machine) {}, Options{Interfaces: "wlan"}, "interfaces", Missing, `"wlan" fits none of lo, eth0, eth1, docker0`},
		"down one":       {func(m *Machine) {}, Options{Interfaces: "eth1"}, "interfaces", Missing, "eth1 is down"},
		"loopback only":  {func(m *Machine) {}, Options{Interfaces: "lo"}, "interfaces", Limited, "only loopback"},
		"silent":         {func(m *Machine) { m.Try = answers("lo", "eth0", "docker0") }, job, "interfaces", Missing, "no answer within 2s"},
		"outside silent": {func(m *Machine) { m.Try = answers("eth0", "docker0") }, job, "interfaces", Missing, "no answer within 2s"},
		"one is silent":  {func(m *Machine) { m.Try = answers("docker0") }, job, "interfaces", Limited, "leave an interface out"},
		"name is nothing": {func(m *Machine) {
			m.Lookup = func(context.Context, string, string) ([]netip.Addr, error) { return nil, nil }
		}, job, "rendezvous", Missing, "node0 has no address"},
		"name is slow": {func(m *Machine) {
			m.Bound = time.Millisecond
			m.Lookup = func(ctx context.Context, _, _ string) ([]netip.Addr, error) { <-ctx.Done(); return nil, ctx.Err() }
		}, job, "rendezvous", Missing, "resolve node0: no answer within 1ms"},
		"name is loopback": {func(m *Machine) {
			m.Lookup = func(context.Context, string, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("127.0.1.1")}, nil
			}
		}, job, "rendezvous", Limited, "/etc/hosts"},
		"address":        {func(m *Machine) {}, Options{Rendezvous: "10.0.0.9:4711"}, "rendezvous", OK, "10.0.0.9:4711"},
		"no token":       {func(m *Machine) {}, job, "token", Missing, "several hosts"},
		"token's text":   {func(m *Machine) { m.Env = env.From(map[string]string{"DOORBELL_TOKEN": "s3cret"}) }, job, "token", OK, "DOORBELL_TOKEN is set"},
		"token nowhere":  {func(m *Machine) { m.Env = env.From(map[string]string{"DOORBELL_TOKEN_FILE": "/nonexistent"}) }, job, "token", Missing, "/nonexistent"},
		"old card":       {func(m *Machine) { put(t, m.Sys, "class/infiniband/mlx5_0/device/device", "0x1019") }, Options{}, "gdaki NIC", Missing, "mlx5_0 ConnectX-5 Ex, mlx5_1 ConnectX-6 use a ConnectX-6 Dx"},
		"strange card":   {func(m *Machine) { put(t, m.Sys, "class/infiniband/mlx5_0/device/device", "0xffff") }, Options{}, "gdaki NIC", Missing, "(15b3:ffff)"},
		"other maker":    {func(m *Machine) { put(t, m.Sys, "class/infiniband/mlx5_0/device/vendor", "0x14e4") }, Options{}, "gdaki NIC", Missing, "(14e4:1021)"},
		"no card":        {func(m *Machine) { put(t, m.Sys, "class/infiniband/mlx5_0/device/vendor", "") }, Options{}, "gdaki NIC", Missing, "mlx5_0 of no PCI card"},
		"old driver":     {func(m *Machine) { put(t, m.Sys, "module/nvidia/version", "525.147.05") }, Options{}, "gdaki driver", Missing, "525.147, older than CUDA 12.2's"},
		"first driver":   {func(m *Machine) { put(t, m.Sys, "module/nvidia/version", "535.54.03") }, Options{}, "gdaki driver", OK, "535.54"},
		"strange driver": {func(m *Machine) { put(t, m.Sys, "module/nvidia/version", "new") }, Options{}, "gdaki driver", Missing, `"new"`},
		"no peer memory": {func(m *Machine) { drop(t, m.Sys, "module/nvidia_peermem") }, Options{}, "gdaki memory", Missing, "not the open one"},
		"dma-buf": {func(m *Machine) {
			drop(t, m.Sys, "module/nvidia_peermem")
			put(t, m.Proc, "driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n")
		}, Options{}, "gdaki memory", OK, "dma-buf, by linux 6.8.0"},
		"old for dma-buf": {func(m *Machine) {
			drop(t, m.Sys, "module/nvidia_peermem")
			put(t, m.Proc, "sys/kernel/osrelease", "6.0.19")
		}, Options{}, "gdaki memory", Missing, "linux 6.0.19 is too old"},
		"mellanox's own": {func(m *Machine) {
			drop(t, m.Sys, "module/nvidia_peermem")
			put(t, m.Sys, "module/nv_peer_mem/version", "1.3")
		}, Options{}, "gdaki memory", OK, "nv_peer_mem is loaded"},
		"no mapping": {func(m *Machine) {
			put(t, m.Proc, "driver/nvidia/params", "RegistryDwords: \"PeerMappingOverride=0;\"\n")
		}, Options{}, "gdaki mapping", Missing, "NVreg_RegistryDwords"},
		"administrator": {func(m *Machine) {
			put(t, m.Proc, "driver/nvidia/params", "RegistryDwords: \"\"\n")
			put(t, m.Proc, "self/status", "CapEff:\t000001ffffffffff\n")
		}, Options{}, "gdaki mapping", OK, "CAP_SYS_ADMIN"},
		"verbs refused": {func(m *Machine) {
			drop(t, m.Dev, "infiniband/uverbs1")
			put(t, m.Dev, "infiniband/uverbs1/no", "file")
		}, Options{}, "gdaki mapping", Missing, "uverbs1: is a directory"},
		"token too easy": {func(m *Machine) {}, Options{TokenFile: filepath.Join(tree(t, map[string]string{"t": "12345"}), "t")}, "token", Limited, "only 5 bytes"},
	} {
		m := server(t)
		c.change(&m)
		found := false
		for _, x := range Run(context.Background(), m, c.o).Checks {
			if x.Name != c.check {
				continue
			}
			found = true
			if x.Verdict != c.want || !strings.Contains(x.Found+" "+x.How, c.said) || strings.Contains(x.Found, "s3cret") {
				t.Errorf("%s: %+v (want %s, with %q)", name, x, c.want, c.said)
			}
		}
		if !found {
			t.Errorf("%s: no check %s", name, c.check)
		}
	}
}

// TestThisMachine: the real probes come to an end, and each has something to say.
func TestThisMachine(t *testing.T) {
	r := Run(context.Background(), This(), Options{Ranks: 1})
	if len(r.Checks) < 10 {
		t.Errorf("%+v", r)
	}
	for _, c := range r.Checks {
		if c.Found == "" || c.Gives == "" {
			t.Errorf("%+v", c)
		}
		// Tests of Doorbell itself run on machines where these work.
		if (c.Name == "shared memory" || c.Name == "futex") && This().OS == "linux" && c.Verdict != OK {
			t.Errorf("%+v", c)
		}
	}
}

func TestParse(t *testing.T) {
	for s, want := range map[string]float64{"150000 100000": 1.5, "max 100000": 0, "": 0, "1": 0, "1 0": 0, "-1 100": 0, "x y": 0} {
		if got := parseQuota(s); got != want {
			t.Errorf("quota %q: %v (want %v)", s, got, want)
		}
	}
	for s, want := range map[string]string{"6.8.0-45-generic": "6 8 true", "5.3": "5 3 true", "4.19-rc1": "4 19 true", "": "0 0 false", "x.y": "0 0 false", "6": "6 0 false"} {
		a, b, ok := parseKernel(s)
		if got := fmt.Sprint(a, b, ok); got != want {
			t.Errorf("kernel %q: %s (want %s)", s, got, want)
		}
	}
	for s, want := range map[string]string{fmt.Sprintf(limits, "8388608"): "8388608 true", fmt.Sprintf(limits, "unlimited"): "18446744073709551615 true",
		"": "0 false", "Max locked memory x y": "0 false", "Max locked memory": "0 false"} {
		n, ok := parseMemlock(s)
		if got := fmt.Sprint(n, ok); got != want {
			t.Errorf("limits %q: %s (want %s)", s, got, want)
		}
	}
	for s, want := range map[string]string{"0x15b3": "5555 true", "0x0": "0 true", "0x10000": "65535 false", "15b3": "5555 false", "0x": "0 false", "": "0 false", "0xg": "0 false"} {
		id, ok := parsePCI(s)
		if got := fmt.Sprint(id, ok); got != want {
			t.Errorf("PCI number %q: %s (want %s)", s, got, want)
		}
	}
	for s, want := range map[string]string{"Name:\tx\nCapEff:\t0000000000200000\n": "2097152 true", "CapEff:": "0 false", "CapPrm: 1": "0 false", "CapEff: x": "0 false"} {
		n, ok := parseCapabilities(s)
		if got := fmt.Sprint(n, ok); got != want {
			t.Errorf("status %q: %s (want %s)", s, got, want)
		}
	}
	for s, want := range map[string]bool{`RegistryDwords: "PeerMappingOverride=1;"` + "\n": true, `RegistryDwords: "RmX=2; PeerMappingOverride=1"`: true,
		`RegistryDwords: "PeerMappingOverride=10;"`: false, `RegistryDwords: ""`: false, `RegistryDwordsPerDevice: "PeerMappingOverride=1;"`: false, "": false} {
		if got := parseOverride(s); got != want {
			t.Errorf("parameters %q: %v", s, got)
		}
	}
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 65536: "64 KiB", 1 << 30: "1 GiB", 3 << 29: "1.5 GiB", 1 << 50: "1024 TiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s (want %s)", n, got, want)
		}
	}
}

// FuzzParse: what the kernel's files hold may be anything in a container that fakes them.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"150000 100000", "max 100000", "6.8.0-45", fmt.Sprintf(limits, "65536"), ".", "1.", "9999999999999999999 1",
		"0x15b3", "CapEff:\t00ff", `RegistryDwords: "PeerMappingOverride=1;"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if q := parseQuota(s); !(q >= 0) {
			t.Errorf("%q is a quota of %v", s, q)
		}
		if a, b, ok := parseKernel(s); ok && (a < 0 || b < 0) {
			t.Errorf("%q is kernel %d.%d", s, a, b)
		}
		if n, ok := parseMemlock(s); !ok && n != 0 && n != unlimited {
			t.Errorf("%q is a limit of %d, and none", s, n)
		}
		if id, ok := parsePCI(s); ok && !strings.HasPrefix(s, "0x") {
			t.Errorf("%q is PCI number %x", s, id)
		}
		if n, ok := parseCapabilities(s); !ok && n != 0 {
			t.Errorf("%q is capabilities %x, and none", s, n)
		}
		if parseOverride(s) && !strings.Contains(s, "PeerMappingOverride=1") {
			t.Errorf("%q lets registers be mapped", s)
		}
	})
}
