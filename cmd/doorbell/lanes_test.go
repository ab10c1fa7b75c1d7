// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

// twoWires are two networks that join the hosts, as two rails.
const twoWires = plainWire + `
ip link add wire1 type veth peer name wire1 netns $other
ip addr add 10.98.0.1/24 dev wire1
ip link set wire1 up
on1 ip addr add 10.98.0.2/24 dev wire1
on1 ip link set wire1 up
`

// countWires writes down the bytes that came to each wire of both hosts, under a name, and those since in the end.
const countWires = `
count() {
	for w in wire0 wire1; do
		for h in 0 1; do
			on=; [ $h = 0 ] || on=on1
			$on cat /proc/net/dev | sed -n "s/^ *$w: *\([0-9]*\).*/\1/p" > "$dir/$1.$w.$h"
		done
	done
}
count start
`

// experts is a bench that sends by four contexts.
var experts = []string{"bench", "ll", "-n", "2", "--net", "tcp", "--ranks-per-node", "1", "--hidden", "2048", "--iters", "30", "--json", "--timeout", "25s"}

// moved is how many bytes came to a wire of a host while the bench ran.
func (o outcome) moved(wire string, host int) int {
	o.t.Helper()
	at := func(when string) int {
		n, err := strconv.Atoi(o.file(when + "." + wire + "." + strconv.Itoa(host)))
		if err != nil {
			o.t.Errorf("bytes of %s: %v", wire, err)
		}
		return n
	}
	return at("end") - at("start")
}

// Two networks between two hosts are both used, about alike: contexts are dealt out to them.
func TestWiresTogether(t *testing.T) {
	t.Parallel()
	o := lab{wire: twoWires, event: countWires + "wait $all\ncount end"}.bench(t, experts...)
	o.verified()
	for host := range 2 {
		a, b := o.moved("wire0", host), o.moved("wire1", host)
		t.Logf("host %d got %d and %d bytes", host, a, b)
		if min(a, b) < max(a, b)/4 || max(a, b) < 1<<20 {
			t.Errorf("host %d got %d bytes by wire0 and %d by wire1: both must carry a good part\n%s", host, a, b, o)
		}
	}
	if said := o.file("err1"); strings.Count(said, "tcp: lanes to a peer") != 1 || !strings.Contains(said, "0: wire0 to wire0 at") || !strings.Contains(said, "1: wire1 to wire1 at") {
		t.Errorf("rank 1, which dials, does not say once which lanes there are\n%s", o)
	}
}

// DOORBELL_TCP_LANES=1 keeps to one network.
func TestWiresOneLane(t *testing.T) {
	t.Parallel()
	o := lab{wire: twoWires + "export DOORBELL_TCP_LANES=1\n", event: countWires + "wait $all\ncount end"}.bench(t, experts...)
	o.verified()
	for host := range 2 {
		if a, b := o.moved("wire0", host), o.moved("wire1", host); b > a/10 {
			t.Errorf("host %d got %d bytes by wire0 and %d by wire1, which is not to be used\n%s", host, a, b, o)
		}
	}
	if said := o.file("err1"); !strings.Contains(said, "at most 1 lanes are asked for") {
		t.Errorf("rank 1 does not say why it uses one\n%s", o)
	}
}

// Without a token a rank comes in from each of the addresses that it has told, not only from the one that it met by.
func TestWiresWithoutToken(t *testing.T) {
	t.Parallel()
	o := lab{wire: twoWires, event: countWires + "wait $all\ncount end", start: `
set -- env WORLD_SIZE=2 MASTER_ADDR=10.99.0.1 MASTER_PORT=4711 "$@"
proc 1 nsenter -t $other -n env RANK=1 "$@" &
all=$!
proc 0 env RANK=0 "$@" &
all="$all $!"
`}.bench(t, slices.Concat(experts[:2], experts[4:])...)
	o.verified()
	if b := o.moved("wire1", 0); b < 1<<20 {
		t.Errorf("host 0 got %d bytes by wire1\n%s", b, o)
	}
	if said := o.file("err0"); !strings.Contains(said, "unauthenticated") || strings.Contains(said, "refuse data connection") {
		t.Errorf("rank 0 does not say that there is no token, or refused its peer\n%s", o)
	}
}

// One of two networks goes for good in the middle: its lane goes on by the other one, with nothing lost or doubled. The
// ranks' control sockets, whose silence is a loss, go by that one too.
func TestWiresOneGoes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ at, event string }{
		"lane 0":                   {"10.98.0.1:4711", "ip link del wire0"},
		"lane 1":                   {"10.99.0.1:4711", "ip link del wire1"},
		"one way, nobody tells it": {"10.99.0.1:4711", "on1 ip neigh replace 10.98.0.1 lladdr 02:00:00:00:00:99 dev wire1 nud permanent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "lane 0" && !testenv.Long() {
				t.Skip("long: set DOORBELL_LONG=1")
			}
			o := lab{wire: twoWires, at: c.at, event: "begun 2000; " + c.event}.
				bench(t, append(experts, "--iters", "150")...)
			o.verified()
			if said := o.file("err1"); !strings.Contains(said, "tcp: connected again") {
				t.Errorf("rank 1 does not say that a lane came back\n%s", o)
			}
			for _, n := range []string{"0", "1"} {
				if o.took(n) < 0 {
					t.Errorf("host %s ended before the wire went\n%s", n, o)
				}
			}
		})
	}
}

// One of two networks carries nothing from the start, and nobody says so: the ranks meet with one lane.
func TestWiresOneDead(t *testing.T) {
	t.Parallel()
	for dead, address := range map[string]string{"wire0": "10.99.0.1", "wire1": "10.98.0.1"} {
		t.Run(dead, func(t *testing.T) {
			t.Parallel()
			o := lab{wire: twoWires + "on1 ip neigh replace " + address + " lladdr 02:00:00:00:00:99 dev " + dead + " nud permanent\n", at: map[string]string{"wire0": "10.98.0.1:4711"}[dead]}.
				bench(t, append(experts, "--timeout", "8s")...)
			o.verified()
			if said := o.file("err1"); strings.Contains(said, "1: wire") {
				t.Errorf("rank 1 has a lane over a network that carries nothing\n%s", o)
			}
		})
	}
}
