// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// realNIC says of itself that it is one of hardware, and is softnic. The next so many ranks that look for one find it.
type realNIC struct{ otherNIC }

var realNICs atomic.Int32

func (realNIC) Probe() error {
	if realNICs.Add(-1) < 0 {
		realNICs.Store(0)
		return errors.New("no such device")
	}
	return nil
}

// TestBackendChoice: gdaki comes by itself where each rank has a real NIC, and is forced else, by an emulated one, with one line
// that says so; a network that was named is used.
func TestBackendChoice(t *testing.T) {
	const emulated, real = "kernels drive an emulated NIC", "kernels drive a NIC"
	for name, c := range map[string]struct {
		have    int32 // ranks with a real NIC
		o       doorbell.Options
		backend string
		nic     string
		net     string
		lines   []string // of the log
	}{
		"auto, all have one":        {2, doorbell.Options{}, "gdaki", "real", "real", []string{real}},
		"auto, one has none":        {1, doorbell.Options{}, "proxy", "", "shm", nil},
		"auto, none have":           {0, doorbell.Options{Backend: "auto"}, "proxy", "", "shm", nil},
		"auto, a network is named":  {2, doorbell.Options{Net: "shm"}, "proxy", "", "shm", nil},
		"proxy":                     {2, doorbell.Options{Backend: "proxy"}, "proxy", "", "shm", nil},
		"gdaki, all have one":       {2, doorbell.Options{Backend: "gdaki"}, "gdaki", "real", "real", []string{real}},
		"gdaki, none have":          {0, doorbell.Options{Backend: "gdaki"}, "gdaki", "softnic", "shm", []string{emulated, "NIC real: ranks 0-1: no such device"}},
		"gdaki, a network is named": {2, doorbell.Options{Backend: "gdaki", Net: "tcp"}, "gdaki", "softnic", "tcp", []string{emulated, "wire=tcp"}},
	} {
		var log logText
		realNICs.Store(c.have)
		c.o.Log = slog.New(slog.NewTextHandler(&log, nil))
		each(t, local(t, 2, c.o), func(r *rank) {
			if i := r.Info(); i.Backend != c.backend || i.NIC != c.nic || i.Net != c.net || i.Network != (c.net != "shm") {
				r.fail("%s: it says of itself %+v", name, i)
			}
			dc := r.devComm(doorbell.Needs{Signals: 1})
			r.run(func(t gpu.Thread) {
				d, co := dc.Device(), gin.ByThread(t)
				c, world := gin.Open(&d, 0), gin.World(&d)
				ok(c.Signal(co, world, 1-d.Rank, gin.StrongInc(0)), "signal")
				ok(c.WaitSignal(co, 0, 1, 64, gin.FromAny()), "wait")
			})
			r.sync()
			r.drop(dc)
		})
		text := log.String()
		if n := strings.Count(text, "\n"); n > 1 || (n == 1) != (c.lines != nil) {
			t.Errorf("%s: %d lines:\n%s", name, n, text)
		}
		for _, s := range c.lines {
			if !strings.Contains(text, s) {
				t.Errorf("%s: the log does not say %q:\n%s", name, s, text)
			}
		}
	}
	t.Setenv("DOORBELL_NIC", "real")
	realNICs.Store(1)
	_, err := doorbell.Local(2, doorbell.Options{Backend: "gdaki", Log: quiet()})
	says(t, err, "a NIC that one rank lacks", "backend gdaki (Options.Backend)", "NIC real: rank ", "no such device")
	if !errors.Is(err, doorbell.ErrCannot) {
		t.Errorf("%v: it is not %q", err, doorbell.ErrCannot)
	}
}

// TestBackendOfNCCL: NCCL's names for the backend are followed, and the log says which variable it was and what it overruled.
func TestBackendOfNCCL(t *testing.T) {
	set := func(ours, code, paper string) {
		t.Setenv("DOORBELL_GIN_BACKEND", ours)
		t.Setenv("NCCL_GIN_TYPE", code)
		t.Setenv("NCCL_GIN_BACKEND", paper)
	}
	for _, c := range []struct{ ours, code, paper, backend, says string }{
		{"", "3", "proxy", "gdaki", "says=NCCL_GIN_TYPE=3 overruled=NCCL_GIN_BACKEND=proxy"},
		{"", "", "gdaki", "gdaki", "says=NCCL_GIN_BACKEND=gdaki overruled=\n"},
		{"proxy", "3", "", "proxy", "says=DOORBELL_GIN_BACKEND=proxy overruled=NCCL_GIN_TYPE=3"},
		{"proxy", "", "", "proxy", ""},
	} {
		var log logText
		set(c.ours, c.code, c.paper)
		cs := local(t, 2, doorbell.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		text := strings.ReplaceAll(log.String(), `"`, "")
		if cs[1].Info().Backend != c.backend || strings.Count(text, "who drives the network") != min(len(c.says), 1) || !strings.Contains(text, c.says) {
			t.Errorf("%+v: backend %s, and the log is\n%s", c, cs[1].Info().Backend, text)
		}
	}
	set("", "4", "")
	_, err := doorbell.Local(1)
	says(t, err, "a type of NCCL's that is not here", `NCCL_GIN_TYPE="4"`, "2 (proxy), 3 (gdaki)", "DOORBELL_GIN_BACKEND goes before it")
	set("", "", "both")
	_, err = doorbell.Local(1)
	says(t, err, "no backend", `NCCL_GIN_BACKEND="both"`, "proxy, gdaki")
}

// TestBackendsDiffer: ranks that ask for different backends are refused, each with the word of all.
func TestBackendsDiffer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testBound)
	defer cancel()
	errs := make([]error, 3)
	var wg sync.WaitGroup
	for r, backend := range []string{"proxy", "gdaki", "proxy"} {
		wg.Go(func() {
			_, errs[r] = doorbell.Open(ctx, doorbell.Options{Rank: r, Size: 3, Addr: fmt.Sprintf("unix:@doorbell-differ-%d", os.Getpid()), Job: "differ", Backend: backend, Log: quiet()})
		})
	}
	wg.Wait()
	for r, err := range errs {
		says(t, err, "open", fmt.Sprintf("rank %d: open: backend: ranks 0, 2: proxy (Options.Backend); rank 1: gdaki (Options.Backend): they must agree", r))
		if !errors.Is(err, doorbell.ErrDisagree) {
			t.Errorf("%v: it is not %q", err, doorbell.ErrDisagree)
		}
	}
}
