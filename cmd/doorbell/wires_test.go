// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
)

// These tests put something hostile between two hosts. They wait rather than work, so they run side by side.

// long is a bench that goes on until something ends it.
var long = []string{"bench", "pingpong", "-n", "2", "--net", "tcp", "--sizes", "8", "--iters", "100000000", "--json", "--timeout", "20s"}

// outcome is what a bench on two hosts ended with.
type outcome struct {
	t    *testing.T
	file func(string) string
	r    report.Result
}

func (l lab) bench(t *testing.T, args ...string) outcome {
	t.Helper()
	o := outcome{t: t, file: l.run(t, args...)}
	r, err := report.Decode([]byte(o.file("out0")))
	if err != nil {
		t.Errorf("%v\n%s", err, o)
	}
	o.r = r
	return o
}

func (o outcome) String() string {
	s := ""
	for _, f := range []string{"out0", "err0", "code0", "out1", "err1", "code1"} {
		s += f + ": " + o.file(f) + "\n"
	}
	return s
}

// took is how long host n went on after the event.
func (o outcome) took(n string) time.Duration {
	o.t.Helper()
	event, err := strconv.ParseInt(o.file("event"), 10, 64)
	end, err2 := strconv.ParseInt(o.file("end"+n), 10, 64)
	if err != nil || err2 != nil {
		o.t.Fatalf("%v, %v\n%s", err, err2, o)
	}
	return time.Duration(end - event)
}

// verified checks that the bench went through whole.
func (o outcome) verified() {
	o.t.Helper()
	if !o.r.Verified || o.file("code0") != "0" || o.file("code1") != "0" {
		o.t.Errorf("not verified\n%s", o)
	}
}

// lost checks that both hosts ended soon after the event, each with the reason: the other's rank.
func (o outcome) lost(bound time.Duration) {
	o.t.Helper()
	if o.r.Verified || o.file("code0") != "1" || o.file("code1") != "1" {
		o.t.Errorf("verified %v, and both are to fail\n%s", o.r.Verified, o)
	}
	for n, want := range []string{"(rank 1", "(rank 0"} {
		host := strconv.Itoa(n)
		took := o.took(host)
		if took < 0 || took > bound {
			o.t.Errorf("host %s ended %v after the event, at most %v are accepted\n%s", host, took, bound, o)
		}
		if said := o.file("err" + host); !strings.Contains(said, "PeerLost") || !strings.Contains(said, want) {
			o.t.Errorf("host %s does not say PeerLost %s)\n%s", host, want, o)
		}
		o.t.Logf("host %s ended %.1f s after the event", host, took.Seconds())
	}
}

// A host whose packets do not arrive any more, while it still gets the other's: it is lost to the other, and it is told.
func TestWireCutOneWay(t *testing.T) {
	t.Parallel()
	lab{event: `begun 500; on1 ip neigh replace 10.99.0.1 lladdr 02:00:00:00:00:99 dev wire0 nud permanent`}.
		bench(t, long...).lost(15 * time.Second)
}

// A wire that is gone, with sockets open at both ends: nobody says so, and silence does.
func TestWireGone(t *testing.T) {
	t.Parallel()
	lab{event: `begun 500; ip link del wire0`}.
		bench(t, long...).lost(15 * time.Second)
}

// A link that goes down for two seconds and comes back costs time and nothing else.
func TestWireFlaps(t *testing.T) {
	t.Parallel()
	o := lab{event: `begun 500; ip link set wire0 down; sleep 2; ip link set wire0 up`}.
		bench(t, "bench", "rate", "-n", "2", "--net", "tcp", "--sizes", "8", "--iters", "200000", "--json", "--timeout", "20s")
	o.verified()
	for _, n := range []string{"0", "1"} {
		if d := o.took(n); d < 2*time.Second {
			t.Errorf("host %s ended %v after the link went down: the bench was over before it came back\n%s", n, d, o)
		}
	}
}

// Hosts without an address of IPv4.
func TestWireIPv6(t *testing.T) {
	t.Parallel()
	l := lab{at: "[fd5b:db::1]:4711", wire: `
ip link add wire0 type veth peer name wire0 netns $other
ip addr add fd5b:db::1/64 dev wire0 nodad
ip link set wire0 up
on1 ip addr add fd5b:db::2/64 dev wire0 nodad
on1 ip link set wire0 up
`}
	l.bench(t, "bench", "pingpong", "-n", "2", "--net", "tcp", "--sizes", "8,64K", "--iters", "50", "--json", "--timeout", "20s").verified()
}

// Hosts that have link-local addresses only meet, but one such address may stand on each link, so they are not offered
// for data: both say what is missing.
func TestWireLinkLocal(t *testing.T) {
	t.Parallel()
	l := lab{at: "[fe80::1%wire0]:4711", wire: `
ip link add wire0 type veth peer name wire0 netns $other
ip link set wire0 addrgenmode none up
ip addr add fe80::1/64 dev wire0 nodad
on1 ip link set wire0 addrgenmode none up
on1 ip addr add fe80::2/64 dev wire0 nodad
`}
	o := l.bench(t, "bench", "pingpong", "-n", "2", "--net", "tcp", "--sizes", "8", "--iters", "50", "--json", "--timeout", "3s")
	for n, want := range []string{"rank 1 at ", "rank 0 at "} {
		host := strconv.Itoa(n)
		if said := o.file("err" + host); o.file("code"+host) != "1" || !strings.Contains(said, want) || !strings.Contains(said, "no other interface that is up with an address of more than its link") {
			t.Errorf("host %s does not say that %s has link-local addresses only\n%s", host, want[:6], o)
		}
	}
}

// Both hosts have a container bridge with the same address, an interface that is down, one with link-local addresses and
// one that leads nowhere, all before the wire: none of them is taken for the way to the other.
func TestWireAmongOthers(t *testing.T) {
	t.Parallel()
	others := `
ip link add docker0 type bridge || ip link add docker0 type veth peer name docker1
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up
ip link add down0 type veth peer name down1
ip addr add 10.77.0.1/24 dev down0
ip link add apipa0 type veth peer name apipa1
ip addr add 169.254.7.7/16 dev apipa0
ip link set apipa0 up
ip link set apipa1 up
ip link add lonely0 type veth peer name lonely1
ip addr add 10.98.0.1/24 dev lonely0
ip link set lonely0 up
ip link set lonely1 up
`
	o := lab{wire: others + "nsenter -t $other -n sh -c '" + others + "'\n" + plainWire}.
		bench(t, "bench", "pingpong", "-n", "2", "--net", "tcp", "--sizes", "8,64K", "--iters", "50", "--json", "--timeout", "20s")
	o.verified()
}

// A way that drops large packets of one direction and says nothing. Sockets connect over it and then stand still; they
// are made again with small segments, and what had been sent arrives. Either rank may be the one that finds out.
func TestWireDropsLargePackets(t *testing.T) {
	for to, narrow := range map[string]string{
		"to host 1": "ip link set wire0 gso_max_segs 1; on1 ip link set wire0 mtu 600; on1 ip route replace 10.99.0.0/24 dev wire0 src 10.99.0.2 advmss 1460",
		"to host 0": "on1 ip link set wire0 gso_max_segs 1; ip link set wire0 mtu 600; ip route replace 10.99.0.0/24 dev wire0 src 10.99.0.1 advmss 1460",
	} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			o := lab{wire: plainWire + narrow}.
				bench(t, "bench", "pingpong", "-n", "2", "--net", "tcp", "--sizes", "8,64K", "--iters", "50", "--json", "--timeout", "20s")
			o.verified()
			if said := o.file("err0") + o.file("err1"); !strings.Contains(said, "large packets are lost on the way") {
				t.Errorf("nobody says that large packets are lost\n%s", o)
			}
		})
	}
}

// A host with fewer ports than a rank needs: it says so by the deadline, and the other says whom it waited for.
func TestWireFewPorts(t *testing.T) {
	t.Parallel()
	o := lab{wire: plainWire + `on1 sh -c 'echo 40000 40000 > /proc/sys/net/ipv4/ip_local_port_range'`}.
		bench(t, "bench", "pingpong", "-n", "2", "--net", "tcp", "--sizes", "8", "--iters", "50", "--json", "--timeout", "3s")
	for n, want := range []string{"rank 1", "cannot assign requested address"} {
		host := strconv.Itoa(n)
		if o.file("code"+host) != "1" || !strings.Contains(o.file("err"+host), want) {
			t.Errorf("host %s does not say %q\n%s", host, want, o)
		}
	}
}

// Four ranks, each started by itself as an operator does it on pods, dealt out to two hosts in no order. Rank 0 is on
// host 1.
func TestWireShuffledRanks(t *testing.T) {
	t.Parallel()
	o := lab{start: `
all=
for r in 3 1 0 2; do
	on="env RANK=$r WORLD_SIZE=4 MASTER_ADDR=10.99.0.2 MASTER_PORT=4711 DOORBELL_TOKEN=shuffled"
	case $r in 0 | 3) on="nsenter -t $other -n $on" ;; esac
	proc $r $on "$@" &
	all="$all $!"
done
`}.bench(t, "bench", "alltoall", "--sizes", "8,16K", "--iters", "20", "--json", "--timeout", "20s")
	o.verified()
	for _, r := range []string{"2", "3"} {
		if o.file("code"+r) != "0" || o.file("out"+r) != "" {
			t.Errorf("rank %s: exit %s, prints %q\n%s", r, o.file("code"+r), o.file("out"+r), o.file("err"+r))
		}
	}
	if len(o.r.Rows) != 2 || o.r.Rows[0].Ranks != 4 || o.r.Rows[0].Net != "tcp" {
		t.Errorf("rows %+v", o.r.Rows)
	}
}
