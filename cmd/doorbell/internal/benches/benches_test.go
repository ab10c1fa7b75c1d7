// SPDX-License-Identifier: Apache-2.0

package benches

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
	"github.com/doorbell-net/doorbell/internal/testenv"
	"github.com/doorbell-net/doorbell/moe"
	_ "github.com/doorbell-net/doorbell/netplugin/fault"
)

// runAll runs a benchmark on n ranks of this process, and returns rank 0's result and all ranks' errors.
func runAll(t *testing.T, name string, n int, o doorbell.Options, cfg Config) (report.Result, error) {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Inject != "" {
		o.Net = "fault+" + cmp.Or(o.Net, "shm")
	}
	comms, err := doorbell.Local(n, o)
	if err != nil {
		t.Fatal(err)
	}
	return runOn(comms, name, cfg)
}

// runOn runs a benchmark on all ranks, and closes them.
func runOn(comms []*doorbell.Comm, name string, cfg Config) (report.Result, error) {
	type end struct {
		rank int
		r    report.Result
		err  error
	}
	ends := make(chan end, len(comms))
	for i, c := range comms {
		go func() {
			r, err := Run(context.Background(), c, name, cfg)
			ends <- end{i, r, errors.Join(err, c.Close())}
		}()
	}
	var first report.Result
	var err error
	for range comms {
		e := <-ends
		if e.rank == 0 {
			first = e.r
		}
		err = errors.Join(err, e.err)
	}
	return first, err
}

func small(lsa bool) Config {
	return Config{Sizes: []int64{8, 4096}, Iters: 1024, Warmup: 2, Seed: 5, LSA: lsa, Tokens: []int{6}, Hidden: 64, TopK: 3, Experts: 9}
}

// sized are the sizes that a benchmark takes, and for one that computes much few iterations.
func sized(name string, c Config) Config {
	if name == "rate" {
		c.Sizes = []int64{8}
	}
	if name == "post" {
		c.Sizes = []int64{8, 512}
	}
	if name == "fused" {
		c.Sizes, c.Iters = []int64{4096, 12288}, 4
	}
	if name == "ll" || name == "ht" {
		c.Iters = 16
	}
	return c
}

var names = []string{"pingpong", "bw", "rate", "alltoall", "ll", "ht", "post", "fused"}

// forms are those of them that dispatch and combine, operations what each measures.
var (
	forms      = []string{"ll", "ht"}
	operations = map[string][]string{"ll": {"dispatch", "combine"}, "ht": {"dispatch", "dispatch again", "combine"}}
)

// ways are how operations may go: by stores, and by a network that either backend drives.
var ways = []struct {
	lsa     bool
	backend string
}{{true, "proxy"}, {false, "proxy"}, {false, "gdaki"}}

func TestVerified(t *testing.T) {
	for _, name := range names {
		for _, w := range ways {
			for _, n := range []int{1, 2, 3, 4} {
				if n == 1 && name != "alltoall" && name != "ll" && name != "ht" {
					continue // it takes two to exchange
				}
				if n == 3 && testenv.Race {
					continue // it is slow, and 2 and 4 have all that threads share
				}
				t.Run(fmt.Sprintf("%s-%d-lsa=%v-%s", name, n, w.lsa, w.backend), func(t *testing.T) {
					cfg := small(w.lsa)
					cfg.Iters = 64
					cfg = sized(name, cfg)
					r, err := runAll(t, name, n, doorbell.Options{Backend: w.backend}, cfg)
					if err != nil || !r.Verified || r.Error != "" {
						t.Fatalf("verified %v, %q, %v", r.Verified, r.Error, err)
					}
					for _, row := range r.Rows {
						if row.CheckedBytes == 0 || row.Iters == 0 {
							t.Errorf("row proves nothing: %+v", row)
						}
					}
				})
			}
		}
	}
}

// A benchmark that does not notice what went wrong proves nothing when all goes right.
func TestInjectedFaultsAreNoticed(t *testing.T) {
	if testenv.Race {
		t.Skip("an injected fault breaks the order that signals give: the race detector reports it, rightly")
	}
	for _, name := range names {
		for _, inject := range []string{"bitflip", "lostput", "doublesignal"} {
			for _, w := range ways {
				t.Run(fmt.Sprintf("%s-%s-lsa=%v-%s", name, inject, w.lsa, w.backend), func(t *testing.T) {
					r, err := runAll(t, name, 2, doorbell.Options{Inject: inject, Timeout: 2 * time.Second, Backend: w.backend}, sized(name, small(w.lsa)))
					if r.Verified {
						t.Errorf("verified in spite of it; errors: %v", err)
					}
					if r.Error == "" && err == nil {
						t.Error("nothing says what was wrong")
					}
				})
			}
		}
	}
}

// TestInjectedOverTCP: over a network that has to be connected too, and for what was done, not because it cannot be used so.
func TestInjectedOverTCP(t *testing.T) {
	if testenv.Race {
		t.Skip("an injected fault breaks the order that signals give: the race detector reports it, rightly")
	}
	for inject, says := range map[string]string{"bitflip": "1 of 8 bytes from rank 0 wrong", "lostput": "bytes from rank 0 wrong", "doublesignal": "signal 0 ended at"} {
		cfg := small(false)
		cfg.Sizes = []int64{8}
		r, err := runAll(t, "pingpong", 2, doorbell.Options{Net: "tcp", Inject: inject, Timeout: 5 * time.Second}, cfg)
		if err != nil || r.Verified || !strings.Contains(r.Error, says) {
			t.Errorf("%s: verified %v, %q (must say %q), %v", inject, r.Verified, r.Error, says, err)
		}
	}
}

func TestVirtualNodes(t *testing.T) {
	for _, name := range []string{"alltoall", "ll", "ht"} {
		r, err := runAll(t, name, 4, doorbell.Options{RanksPerNode: 2}, sized(name, small(true)))
		if err != nil || !r.Verified {
			t.Fatalf("%s: %v %q %v", name, r.Verified, r.Error, err)
		}
		if row := r.Rows[0]; row.Nodes != 2 || row.Net != "lsa+shm" || !row.Emulated {
			t.Errorf("%s: row does not say what it is: %+v", name, row)
		}
	}
}

func TestFormats(t *testing.T) {
	for f := moe.FP8; f <= moe.FP8UE8M0; f++ {
		for _, inject := range []string{"", "bitflip"} {
			if inject != "" && testenv.Race {
				continue // see TestInjectedFaultsAreNoticed
			}
			cfg := small(true)
			cfg.Format, cfg.PerRank = f, f == moe.FP8
			for _, name := range forms {
				r, err := runAll(t, name, 2, doorbell.Options{Inject: inject, Timeout: 5 * time.Second}, sized(name, cfg))
				if r.Verified != (inject == "") {
					t.Errorf("%s, %v, inject %q: verified %v, %q, %v", name, f, inject, r.Verified, r.Error, err)
				}
			}
		}
	}
}

func TestRoutingIsRecordedAndRead(t *testing.T) {
	for _, name := range forms {
		file := filepath.Join(t.TempDir(), "routing")
		cfg := sized(name, small(true))
		cfg.Record = file
		if r, err := runAll(t, name, 2, doorbell.Options{}, cfg); err != nil || !r.Verified {
			t.Fatalf("%s: record: %v %v", name, r.Error, err)
		}
		cfg.Record, cfg.Routing, cfg.Seed = "", file, 77
		if r, err := runAll(t, name, 2, doorbell.Options{}, cfg); err != nil || !r.Verified {
			t.Fatalf("%s: replay: %v %v", name, r.Error, err)
		}
		if _, err := runAll(t, name, 3, doorbell.Options{Timeout: 2 * time.Second}, cfg); err == nil || !strings.Contains(err.Error(), "of 2 ranks") {
			t.Errorf("%s: a routing of 2 ranks on 3: %v", name, err)
		}
		if err := os.WriteFile(file, []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := runAll(t, name, 2, doorbell.Options{Timeout: 2 * time.Second}, cfg); err == nil {
			t.Errorf("%s: a routing file of rubbish accepted", name)
		}
	}
}

// What a part found wrong is not forgotten when the next one finds nothing.
func TestWrongStaysWrong(t *testing.T) {
	comms, err := doorbell.Local(1)
	if err != nil {
		t.Fatal(err)
	}
	defer comms[0].Close()
	b := &bench{ctx: context.Background(), c: comms[0]}
	b.found("a signal")
	for range 2 {
		if _, err := b.share(part{}, nil, nil); err != nil || b.bad != "rank 0: a signal" || b.wrong != "" {
			t.Errorf("%q, and %q not told, %v", b.bad, b.wrong, err)
		}
	}
}

func TestUnknownBench(t *testing.T) {
	if _, err := runAll(t, "coll", 1, doorbell.Options{}, small(true)); !errors.Is(err, doorbell.ErrNotSupported) {
		t.Errorf("got %v", err)
	}
}
