// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
)

func TestOptionsAreRead(t *testing.T) {
	got, err := parseOptions("  rank=1 size=2\tlocal_rank=3 local_size=4\nnet=tcp backend=proxy device=soft progress=assisted ranks_per_node=1 traffic_class=8 timeout=1m5s " +
		"faults=seed=7,reorder inject=lostput addr=host:1 job=a=b")
	want := doorbell.Options{
		Rank: 1, Size: 2, LocalRank: 3, LocalSize: 4, Net: "tcp", Backend: "proxy", Device: "soft", Progress: "assisted", RanksPerNode: 1, TrafficClass: 8,
		Timeout: 65 * time.Second, Faults: "seed=7,reorder", Inject: "lostput", Addr: "host:1", Job: "a=b",
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v (%v), want %+v", got, err, want)
	}
	needs, err := parseNeeds("contexts=1 signals=2 counters=3 barriers=4 queue_depth=8 small_put=16 traffic_class=5 lla2a_blocks=6 lla2a_slots=7 rail=1 weak_only=1 fence=1 multimem=0 sharing=block")
	wantNeeds := doorbell.Needs{
		Contexts: 1, Signals: 2, Counters: 3, Barriers: 4, QueueDepth: 8, SmallPut: 16, TrafficClass: 5, LLA2ABlocks: 6, LLA2ASlots: 7,
		Rail: true, WeakOnly: true, Fence: true, Sharing: doorbell.OneBlock,
	}
	if err != nil || !reflect.DeepEqual(needs, wantNeeds) {
		t.Errorf("got %+v (%v), want %+v", needs, err, wantNeeds)
	}
}

func TestOptionsThatAreRefused(t *testing.T) {
	for text, says := range map[string]string{
		"signals":             `"signals": name=value is accepted`,
		"=1":                  `no option "": accepted are barriers, contexts,`,
		"signal=1":            `no option "signal"`,
		"signals=1 signals=1": "signals stands twice",
		"signals=many":        "signals=many: a number of 32 bits is accepted",
		"signals=2147483648":  "a number of 32 bits",
		"signals=":            "a number of 32 bits",
		"rail=yes":            "0 and 1 are accepted",
		"sharing=nobody":      "all, thread and block are accepted",
	} {
		if _, err := parseNeeds(text); !errors.Is(err, errInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q in it", text, err, says)
		}
	}
}

// FuzzOptions: any text is read or refused in words.
func FuzzOptions(f *testing.F) {
	f.Add("rank=1 size=2 timeout=3s")
	f.Add("signals=1 sharing=all rail=1")
	f.Add("a=b=c  =\x00")
	f.Fuzz(func(t *testing.T, s string) {
		o, err := parseOptions(s)
		if err != nil && !errors.Is(err, errInvalid) {
			t.Errorf("%q: %v", s, err)
		}
		if err == nil && o.Timeout < 0 {
			t.Errorf("%q gives timeout %v", s, o.Timeout)
		}
		if n, err := parseNeeds(s); err == nil && strings.TrimSpace(s) == "" && !reflect.DeepEqual(n, doorbell.Needs{}) {
			t.Errorf("%q gives %+v", s, n)
		}
	})
}
