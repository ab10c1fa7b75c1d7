// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// twoHosts makes two network namespaces that a veth pair joins, and removes them. Abstract sockets and loopback are of
// each alone, so that it looks like two hosts with one boot id.
type twoHosts struct {
	t    *testing.T
	name [2]string
	ip4  [2]string
	ip6  [2]string
}

func needTwoHosts(t *testing.T) *twoHosts {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip: ", err)
	}
	h := &twoHosts{t: t}
	n := os.Getpid() % 250
	for i := range 2 {
		h.name[i] = fmt.Sprintf("dbell%d-%d", os.Getpid(), i)
		h.ip4[i] = fmt.Sprintf("10.231.%d.%d", n, i+1)
		h.ip6[i] = fmt.Sprintf("fd5b:%x::%d", n, i+1)
		if out, err := exec.Command("ip", "netns", "add", h.name[i]).CombinedOutput(); err != nil {
			t.Skipf("needs network namespaces: %v: %s", err, out)
		}
		t.Cleanup(func() { exec.Command("ip", "netns", "del", h.name[i]).Run() })
	}
	if out, err := exec.Command("ip", "link", "add", "veth0", "netns", h.name[0], "type", "veth", "peer", "name", "veth0", "netns", h.name[1]).CombinedOutput(); err != nil {
		t.Skipf("needs veth: %v: %s", err, out)
	}
	for i := range 2 {
		h.ip(i, "addr", "add", h.ip4[i]+"/24", "dev", "veth0")
		exec.Command("ip", "-n", h.name[i], "addr", "add", h.ip6[i]+"/64", "dev", "veth0", "nodad").Run()
		h.ip(i, "link", "set", "lo", "up")
		h.ip(i, "link", "set", "veth0", "up")
	}
	return h
}

func (h *twoHosts) ip(host int, args ...string) {
	h.t.Helper()
	if out, err := exec.Command("ip", append([]string{"-n", h.name[host]}, args...)...).CombinedOutput(); err != nil {
		h.t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// start runs ranks, half of them on each host.
func (h *twoHosts) start(cs []Config) []*child {
	return h.startOn(cs, func(r int) int { return 2 * r / len(cs) })
}

// startOn runs each rank on the host that on names.
func (h *twoHosts) startOn(cs []Config, on func(rank int) int) (out []*child) {
	for r, c := range cs {
		out = append(out, startChildBy(h.t, c, "ip", "netns", "exec", h.name[on(r)], os.Args[0]))
	}
	return out
}

func TestTwoHosts(t *testing.T) {
	h := needTwoHosts(t)
	ch := h.start(configs(4, func(c *Config) { c.Addr, c.Suspect = h.ip4[0]+":29500", 2*time.Second }))
	for _, c := range ch {
		c.expect("joined")
		c.tell("fds all 3")
	}
	for r, c := range ch {
		c.expect("fds all: <nil>")
		c.tell("epoch")
		if l := c.expect("epoch"); l != []string{"epoch 0 near [0 1]", "epoch 0 near [2 3]"}[r/2] {
			t.Errorf("rank %d: %s", r, l)
		}
	}

	start := time.Now()
	ch[3].cmd.Process.Kill()
	for _, c := range ch[:3] {
		c.expect("lost 3: ")
		c.tell("epoch")
		c.expect("epoch 1 ")
	}
	t.Logf("a killed rank was lost on all after %v", time.Since(start))

	// Nothing more gets from host 0 to host 1. Host 0 has half of the ranks and more, so it goes on.
	start = time.Now()
	h.ip(0, "route", "add", "blackhole", h.ip4[1]+"/32")
	for _, c := range ch[:2] {
		c.expect("lost 2: ")
		c.tell("epoch")
		c.expect("epoch 2 ")
	}
	t.Logf("a rank that was cut off was lost on all after %v", time.Since(start))
	for range 2 {
		if l := ch[2].expect("lost "); !strings.Contains(l, ErrCutOff.Error()) {
			t.Errorf("rank 2: %s", l)
		}
	}
	ch[2].tell("epoch")
	ch[2].expect("epoch 1 ")
}

// Ranks that are dealt out to hosts in no order find out by themselves who is near.
func TestTwoHostsShuffled(t *testing.T) {
	h := needTwoHosts(t)
	on := []int{1, 0, 0, 1, 0}
	near := []string{"[1 2 4]", "[0 3]"} // by host
	ch := h.startOn(configs(5, func(c *Config) { c.Addr = h.ip4[1] + ":29500" }), func(r int) int { return on[r] })
	for _, c := range ch {
		c.expect("joined")
		c.tell("fds shuffled 3")
	}
	for r, c := range ch {
		c.expect("fds shuffled: <nil>")
		c.tell("epoch")
		if l := c.expect("epoch"); l != "epoch 0 near "+near[on[r]] {
			t.Errorf("rank %d on host %d: %s, want near %s", r, on[r], l, near[on[r]])
		}
	}
}

func TestTwoHostsIPv6(t *testing.T) {
	h := needTwoHosts(t)
	if err := exec.Command("ip", "netns", "exec", h.name[1], "grep", "-q", "veth0", "/proc/net/if_inet6").Run(); err != nil {
		t.Skip("needs IPv6: ", err)
	}
	ch := h.start(configs(2, func(c *Config) { c.Addr = "[" + h.ip6[0] + "]:29500" }))
	for _, c := range ch {
		c.expect("joined")
		c.tell("fds six 1")
	}
	for _, c := range ch {
		c.expect("fds six: <nil>")
	}
	for _, c := range ch {
		c.tell("close")
		c.expect("closed", "departed")
	}
}

// The other host is not there at all: the way drops everything, and the join ends by its deadline, with the address.
func TestTwoHostsBlackHole(t *testing.T) {
	h := needTwoHosts(t)
	h.ip(1, "route", "add", "blackhole", h.ip4[0]+"/32")
	ch := h.start(configs(2, func(c *Config) { c.Addr, c.Timeout = h.ip4[0]+":29500", time.Second }))
	if l := ch[0].expect("join failed:"); !strings.Contains(l, "for rank 1 (of 2)") {
		t.Error(l)
	}
	if l := ch[1].expect("join failed:"); !strings.Contains(l, "for rank 0 (of 2)") || !strings.Contains(l, "dial "+h.ip4[0]) {
		t.Error(l)
	}
}

// Each host has a bridge as containers use it, with the same address on both, which leads to the host itself. Ranks meet
// by a file, which names that address too, and find the one that leads to the other.
func TestTwoHostsWithBridges(t *testing.T) {
	h := needTwoHosts(t)
	for i := range 2 {
		if out, err := exec.Command("ip", "-n", h.name[i], "link", "add", "docker0", "type", "bridge").CombinedOutput(); err != nil {
			t.Skipf("needs a bridge: %v: %s", err, out)
		}
		h.ip(i, "addr", "add", "172.17.0.1/16", "dev", "docker0")
		h.ip(i, "link", "set", "docker0", "up")
	}
	path := filepath.Join(t.TempDir(), "meet")
	ch := h.start(configs(4, func(c *Config) { c.Addr, c.Token = "file:"+path, nil }))
	for _, c := range ch {
		c.expect("joined")
		c.tell("fds all 3")
	}
	for r, c := range ch {
		c.expect("fds all: <nil>")
		c.tell("epoch")
		if l := c.expect("epoch"); l != []string{"epoch 0 near [0 1]", "epoch 0 near [2 3]"}[r/2] {
			t.Errorf("rank %d: %s", r, l)
		}
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
	for _, c := range ch {
		c.tell("close")
		c.expect("closed", "departed")
	}
}

// Fewer ports than ranks: who gets none says so, with the range's name. Sockets that dial take ports too.
func TestPortRangeTooSmall(t *testing.T) {
	h := needTwoHosts(t)
	if out, err := exec.Command("ip", "netns", "exec", h.name[0], "sh", "-c", "echo 40000 40001 > /proc/sys/net/ipv4/ip_local_port_range").CombinedOutput(); err != nil {
		t.Skipf("needs to set a port range: %v: %s", err, out)
	}
	var ch []*child
	for _, c := range configs(4, func(c *Config) { c.Addr, c.Timeout = "127.0.0.1:29500", 2*time.Second }) {
		ch = append(ch, startChildBy(t, c, "ip", "netns", "exec", h.name[0], os.Args[0]))
	}
	told := 0
	for _, c := range ch {
		if l := c.expect("join failed:"); strings.Contains(l, "ip_local_port_range") {
			told++
		}
	}
	if told < 1 || told > 2 {
		t.Errorf("%d ranks found no port, want 1 or 2 of the 3 that ask for one of 2", told)
	}
}
