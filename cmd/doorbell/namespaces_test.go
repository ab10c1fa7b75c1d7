// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
)

// twoHosts runs in a network namespace of its own, host 0, makes a second one, host 1, and starts a launcher in each. $1
// is the folder for output, the rest is the command without what differs between hosts. Three parts come from the folder:
// wire joins the hosts, start runs the command on them, and event happens meanwhile.
const twoHosts = `
dir=$1; shift
on1() { nsenter -t $other -n "$@"; }
# begun waits until so many packets have come from host 1, or host 0 has ended, and notes the time.
begun() {
	until [ -e "$dir/end0" ] || [ "$(sed -n 's/^ *wire0: *[0-9]* *\([0-9]*\).*/\1/p' /proc/net/dev)" -gt "$1" ]; do sleep 0.02; done
	date +%s%N > "$dir/event"
}
# proc runs a command and keeps what it says, its status and the time of its end under a number.
proc() {
	n=$1; shift
	"$@" > "$dir/out$n" 2> "$dir/err$n"
	echo $? > "$dir/code$n"
	date +%s%N > "$dir/end$n"
}
ip link set lo up
unshare -n sh -c 'echo $$ > "$0/pid.tmp"; mv "$0/pid.tmp" "$0/pid"; exec sleep 60' "$dir" &
until [ -e "$dir/pid" ]; do sleep 0.01; done
other=$(cat "$dir/pid")
trap 'kill $other' EXIT
set -e
on1 ip link set lo up
. "$dir/wire"
set +e
. "$dir/start"
. "$dir/event.sh"
wait $all
`

// launchers are what runs on the hosts: a launcher on each.
const launchers = `
proc 1 nsenter -t $other -n "$@" --node-rank 1 &
all=$!
proc 0 "$@" --node-rank 0 &
all="$all $!"
`

// plainWire is a veth pair with addresses of IPv4, as two hosts on one switch.
const plainWire = `
ip link add wire0 type veth peer name wire0 netns $other
ip addr add 10.99.0.1/24 dev wire0
ip link set wire0 up
on1 ip addr add 10.99.0.2/24 dev wire0
on1 ip link set wire0 up
`

// lab is two hosts, what joins them and what happens to that.
type lab struct {
	wire  string // shell: joins the hosts; plainWire if empty
	at    string // rendezvous; host 0 of plainWire if empty
	start string // shell: runs $@ on the hosts; launchers if empty
	event string // shell: while it runs
	mode  string // of the test binary as the command; "real" if empty
}

// needNamespaces skips where this user cannot make network namespaces, or the tools for it are missing.
func needNamespaces(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"unshare", "nsenter", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no namespaces: %v", err)
		}
	}
	probe := "ip link add va type veth peer name vb && unshare -n true"
	if out, err := exec.Command("unshare", "-Urn", "sh", "-c", probe).CombinedOutput(); err != nil {
		t.Skipf("no namespaces: %v: %s", err, out)
	}
}

// run runs a command on both hosts, and returns what file of the folder holds.
func (l lab) run(t *testing.T, args ...string) (file func(name string) string) {
	t.Helper()
	needNamespaces(t)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	for name, text := range map[string]string{
		"token": "a secret of two namespaces\n", "wire": cmp.Or(l.wire, plainWire), "start": cmp.Or(l.start, launchers), "event.sh": l.event,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	line := append([]string{"-Urn", "--kill-child", "sh", "-c", twoHosts, "sh", dir, exe}, args...)
	if l.start == "" {
		line = append(line, "--nodes", "2", "--token-file", token)
		if !slices.Contains(args, "--rendezvous") {
			line = append(line, "--rendezvous", cmp.Or(l.at, "10.99.0.1:4711"))
		}
	}
	cmd := exec.CommandContext(ctx, "unshare", line...)
	cmd.Env = append(os.Environ(), asDoorbell+"="+cmp.Or(l.mode, "real"), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	file = func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%v", err)
		}
		return strings.TrimSpace(string(b))
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// TestTwoNamespaces: the same line on two hosts, which have nothing in common but a wire, runs one verified bench.
func TestTwoNamespaces(t *testing.T) {
	file := lab{}.run(t, "bench", "pingpong", "-n", "2", "--net", "tcp", "--sizes", "8,64K", "--iters", "50", "--json", "--timeout", "20s")
	r, err := report.Decode([]byte(file("out0")))
	if err != nil || !r.Verified || file("code0") != "0" || file("code1") != "0" || len(r.Rows) != 2 || r.Rows[0].Nodes != 2 || r.Rows[0].Net != "tcp" {
		t.Errorf("%v: exit %s and %s\n%s\nnode 0: %s\nnode 1: %s", err, file("code0"), file("code1"), file("out0"), file("err0"), file("err1"))
	}
	if file("out1") != "" {
		t.Errorf("node 1 prints %s", file("out1"))
	}
}

// TestNamespacesMeetByFile: the same by a file. The two share a machine, and the result says so.
func TestNamespacesMeetByFile(t *testing.T) {
	meet := filepath.Join(t.TempDir(), "meet")
	file := lab{}.run(t, "bench", "pingpong", "-n", "2", "--net", "tcp", "--sizes", "8", "--iters", "50", "--timeout", "20s", "--rendezvous", "file:"+meet)
	out := file("out0")
	for _, want := range []string{"nodes=2", "net=tcp", "verified: yes", "share one host, that is one boot id; TCP went through its kernel", "cut into virtual nodes or namespaces"} {
		if !strings.Contains(out, want) || file("code0") != "0" || file("code1") != "0" {
			t.Errorf("exit %s and %s, no %q in\n%s\nnode 0: %s\nnode 1: %s", file("code0"), file("code1"), want, out, file("err0"), file("err1"))
		}
	}
	if _, err := os.Stat(meet); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the rendezvous file is left: %v", err)
	}
}

// TestLostBetweenNamespaces: rank 1 is killed on its host. There the launcher says so; on the other, rank 0 finds it lost.
func TestLostBetweenNamespaces(t *testing.T) {
	file := lab{mode: "real and rank 1 dies"}.run(t, "bench", "pingpong", "-n", "2", "--net", "tcp", "--sizes", "8", "--iters", "100000000", "--json", "--timeout", "20s")
	r, err := report.Decode([]byte(file("out0")))
	if err != nil || r.Verified || !strings.Contains(r.Error, "rank 1") || file("code0") != "1" || file("code1") != "1" {
		t.Errorf("%v: exit %s and %s\n%s\nnode 0: %s\nnode 1: %s", err, file("code0"), file("code1"), file("out0"), file("err0"), file("err1"))
	}
	if s := file("err1"); !strings.Contains(s, "node 1: rank 1 (pid ") || !strings.Contains(s, "killed by signal 9") {
		t.Errorf("node 1 says %s", s)
	}
	if s := file("err0"); !strings.Contains(s, "node 0: rank 0 (pid ") || !strings.Contains(s, "PeerLost") || !strings.Contains(s, "(rank 1") {
		t.Errorf("node 0 says %s", s)
	}
}

// TestDoctorInNamespaces: what doctor says where there is only loopback, only IPv6, only link-local, nothing that is up, or
// a bridge as containers have it beside an interface.
func TestDoctorInNamespaces(t *testing.T) {
	needNamespaces(t)
	const veth = "ip link set lo up; ip link add va type veth peer name vb; "
	for name, c := range map[string]struct {
		make, args, interfaces string
		code                   int
		want, not              string
	}{
		"loopback":        {"ip link set lo up", "", "", 0, "lo 127.0.0.1, MTU 65536: this host alone", "eth"},
		"nothing":         {"true", "", "", 0, "interfaces     missing  ranks on several hosts                  choose interfaces: no address that a peer could reach: lo is down", ""},
		"nothing, needed": {"true", "--rendezvous 10.0.0.1:4711", "", 1, "missing, and needed: interfaces", ""},
		"IPv6":            {veth + "ip link set va up; ip link set vb up; ip addr add fd00::5/64 dev va nodad", "", "", 0, "va fd00::5, MTU 1500: usable", "lo "},
		"link-local":      {veth + "ip link set va up; ip link set vb up", "--rendezvous 10.0.0.1:4711", "va", 1, "no address that a peer could reach: va ", ""},
		"down":            {veth + "ip addr add 10.3.0.1/24 dev va", "", "", 0, "va is down, not used", "10.3.0.1"},
		"down, wanted":    {veth + "ip addr add 10.3.0.1/24 dev va", "", "va", 1, "va is down", ""},
		"not there":       {veth + "true", "", "eth7", 1, `"eth7" fits none of lo`, ""},
		"a bridge": {veth + "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0; ip addr add 10.3.0.1/24 dev va; ip link set va up; ip link set vb up",
			"", "^docker", 0, "va 10.3.0.1, MTU 1500: usable", "172.17"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := os.Stat("/proc/net/if_inet6"); err != nil && (name == "IPv6" || name == "link-local") {
				t.Skip("needs IPv6: ", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, "unshare", "-Urn", "sh", "-c", c.make+`; exec "$0" "$@"`, os.Args[0], "doctor")
			cmd.Args = append(cmd.Args, strings.Fields(c.args)...)
			cmd.Env = append(os.Environ(), asDoorbell+"=real", "DOORBELL_TOKEN=0123456789abcdef", "DOORBELL_INTERFACES="+c.interfaces)
			out, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.want) || c.not != "" && strings.Contains(string(out), c.not) {
				t.Errorf("exit %d (want %d), %v, want %q and no %q in\n%s", code, c.code, err, c.want, c.not, out)
			}
		})
	}
}
