// SPDX-License-Identifier: Apache-2.0

package gintest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
)

// TestManyRanksStart has ranks of one process start kernels that wait for each other, on streams that come and go, and in
// worlds that do: on one GPU each kernel starts while all others spin. Where one does not, the test says whose, what its stream
// says of it, and whether a kernel on a new stream runs: if it does, the stream's queue is held up, else the GPU.
//
//	DOORBELL_CUDA_TEST=1 go test -run '^TestManyRanksStart$' -v ./internal/gintest
func TestManyRanksStart(t *testing.T) {
	for _, ranks := range []int{4, 8} {
		t.Run(fmt.Sprintf("soft/ranks=%d", ranks), func(t *testing.T) { startWorlds(t, "soft", ranks, 1, 5) })
		for _, starts := range []string{"0", "1"} {
			t.Run(fmt.Sprintf("cuda/ranks=%d/starts=%s", ranks, starts), func(t *testing.T) {
				if on, err := env.GPUs.Get(nil); err != nil || !on {
					t.Skipf("%s is not 1: there may be no GPU here", env.GPUs.Name())
				}
				t.Setenv(env.CUDAStarts.Name(), starts)
				startWorlds(t, "cuda", ranks, 5, 100)
			})
		}
	}
}

func startWorlds(t *testing.T, device string, ranks, worlds, rounds int) {
	for range worlds {
		cs, err := doorbell.Local(ranks, doorbell.Options{Device: device, Timeout: startLimit})
		if err != nil {
			t.Fatal(err)
		}
		w := world{starters: make([]*starter, ranks)}
		var wg sync.WaitGroup
		for r, c := range cs {
			wg.Go(func() {
				if err := w.run(t.Context(), r, c, rounds); err != nil {
					t.Errorf("rank %d: %v", r, err)
					c.Abort(err)
				}
			})
		}
		wg.Wait()
		for _, c := range cs {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			return
		}
	}
}

const (
	startLimit = 10 * time.Second       // of a kernel's wait for the others
	startLate  = 3 * time.Second        // in which all have started, and met
	probeLimit = 500 * time.Millisecond // in which a kernel that waits for nobody ends
)

// world is the ranks of a process.
type world struct{ starters []*starter }

// starter is a rank's.
type starter struct {
	comm  *doorbell.Comm
	dc    *doorbell.DevComm
	words *doorbell.Buffer // three of its kernels', three of a probe's
}

func (w *world) run(ctx context.Context, rank int, c *doorbell.Comm, rounds int) error {
	words, err := c.AllocHost(48)
	if err != nil {
		return err
	}
	dc, err := c.DevComm(ctx, doorbell.Needs{Barriers: 1})
	if err != nil {
		return err
	}
	s := &starter{c, dc, words}
	w.starters[rank] = s
	for round := uint64(1); round <= uint64(rounds); round++ {
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		if err := w.round(ctx, s, round); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return c.Barrier(ctx) // who leaves is lost to who still waits
}

func (w *world) round(ctx context.Context, s *starter, round uint64) error {
	others := [1]*doorbell.Stream{s.comm.Stream()} // so that the stream is another one each time
	st := s.comm.Stream()
	if err := s.launch(st, 0, round, MeetByStores+round%2); err != nil {
		return err
	}
	late, cancel := context.WithTimeout(ctx, startLate)
	defer cancel()
	err := st.Wait(late)
	if late.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w; %s", err, w.seen(ctx, s, round))
	} else if err == nil {
		if status := gin.Status(s.word(2)); status != gin.OK || s.word(1) != round {
			err = fmt.Errorf("the kernel ended with status %d: %v", status, s.dc.Cause())
		}
	}
	errs := []error{err}
	for _, x := range append(others[:], st) {
		errs = append(errs, x.Close())
	}
	return errors.Join(errs...)
}

// seen is what is to be seen of a round in which not all have met.
func (w *world) seen(ctx context.Context, s *starter, round uint64) string {
	var lines []string
	for r, o := range w.starters {
		switch {
		case o.word(0) != round:
			lines = append(lines, fmt.Sprintf("rank %d's kernel has not started", r))
		case o.word(1) != round:
			lines = append(lines, fmt.Sprintf("rank %d's waits", r))
		}
	}
	probe := s.comm.Stream() // not closed: it may never end
	err := s.launch(probe, 3, round, MeetNobody)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, probeLimit)
		defer cancel()
		err = probe.Wait(ctx)
	}
	return fmt.Sprintf("%s; a kernel on a new stream: %v", strings.Join(lines, ", "), err)
}

func (s *starter) launch(st *doorbell.Stream, word int, round, how uint64) error {
	a := StartArgs{DC: s.dc.Device(), Started: gpu.Cast[uint64](s.words.Ptr()).At(word), Round: round, How: how}
	return doorbell.Launch(st, StartKernel, doorbell.Grid{Blocks: 1, Warps: 1}, a)
}

func (s *starter) word(i int) uint64 {
	return gpu.Load(gpu.Cast[uint64](s.words.Ptr()).At(i), gpu.Acquire, gpu.ScopeSys)
}
