// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/internal/testenv"
	"github.com/doorbell-net/doorbell/moe"
	"github.com/doorbell-net/doorbell/moe/ref"
	"github.com/doorbell-net/doorbell/moe/routing"
)

// childEnv has TestProcess be one rank of a job.
const childEnv = "TEST_MOE_CHILD"

// process is one rank of a job: this test binary run again.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
	text  bytes.Buffer
}

func start(t *testing.T, rank, ranks int, environ ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], "-test.run=^TestProcess$", "-test.timeout=60s")}
	p.cmd.Env = append(os.Environ(), childEnv+"=1", fmt.Sprint("DOORBELL_RANK=", rank), fmt.Sprint("DOORBELL_WORLD_SIZE=", ranks),
		fmt.Sprint("DOORBELL_LOCAL_SIZE=", ranks), "DOORBELL_TIMEOUT=20s", fmt.Sprint("DOORBELL_SEED=", testenv.Seed))
	p.cmd.Env = append(p.cmd.Env, environ...)
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = &p.text
	p.lines = bufio.NewScanner(io.TeeReader(out, &p.text))
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.cmd.Process.Kill()
			p.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("rank %d:\n%s", rank, p.text.String())
		}
	})
	return p
}

// until reads on to a line.
func (p *process) until(want string) error {
	for p.lines.Scan() {
		if p.lines.Text() == want {
			return nil
		}
	}
	return fmt.Errorf("no line %q", want)
}

// Processes are killed in the middle of dispatches and combines; the others go on with what is right without them.
func TestKilledProcesses(t *testing.T) {
	if testenv.Race {
		t.Skip("ranks in several processes share memory that the race detector cannot see, and it reports what is handed over there")
	}
	rnd := testenv.Random(t)
	networks := []string{"shm", "tcp"}
	if onDevice() {
		networks = []string{"dma", "staged+tcp"}
	}
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			const ranks = 4
			job := fmt.Sprintf("moe-%d-%x", os.Getpid(), rnd.Uint64())
			ps := make([]*process, ranks)
			for r := range ps {
				ps[r] = start(t, r, ranks, "DOORBELL_ADDR=unix:@"+job, "DOORBELL_JOB="+job, "DOORBELL_TOKEN="+job, "DOORBELL_NET="+network)
			}
			for r, p := range ps {
				if err := p.until("at work"); err != nil {
					t.Fatalf("rank %d: %v", r, err)
				}
			}
			lost := rnd.Perm(ranks)[:1+rnd.IntN(ranks-1)]
			for _, r := range lost {
				time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond) // sleep: the moment is to be any
				ps[r].cmd.Process.Kill()
			}
			left := slices.DeleteFunc(seq(ranks), func(r int) bool { return slices.Contains(lost, r) })
			for _, r := range left {
				fmt.Fprintln(ps[r].stdin, "end")
			}
			for _, r := range left {
				if err := errors.Join(ps[r].until(fmt.Sprint("right with ", left)), ps[r].cmd.Wait()); err != nil {
					t.Errorf("rank %d, lost %v: %v", r, lost, err)
				}
			}
		})
	}
}

// TestProcess is one rank of a job.
func TestProcess(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		t.Skipf("%s is not set: it is run by other tests", childEnv)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	c, err := doorbell.Open(ctx, doorbell.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := moe.New(ctx, c, moe.Options{MaxTokens: 5, Hidden: 64, TopK: 3, Experts: 9})
	if err != nil {
		t.Fatal(err)
	}
	j := &job{ctx: ctx, w: &world{tb: t, comms: make([]*doorbell.Comm, c.Size()), bufs: make([]*moe.Buffer, c.Size()), opt: b.Options()}, r: c.Rank(), st: c.Stream()}
	j.w.comms[j.r], j.w.bufs[j.r] = c, b
	go func() {
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		j.told.Store(err == nil && strings.TrimSpace(line) == "end")
	}()
	for i := 0; ; {
		if i == 3 {
			fmt.Println("at work")
		}
		over, err := j.step(i)
		if err == nil && over && len(b.Ranks()) < c.Size() {
			fmt.Println("right with", b.Ranks())
			break
		}
		if i++; err != nil || over {
			i = j.recover(i)
		}
	}
	if err := c.Barrier(ctx); err != nil {
		t.Error(err)
	}
}

// job is what a rank works on.
type job struct {
	ctx  context.Context
	w    *world
	r    int
	st   *doorbell.Stream
	told atomic.Bool // to end
}

// step is number i of the problems, and whether all have been told to end. What is wrong ends the test.
func (j *job) step(i int) (over bool, err error) {
	c, b := j.w.comms[j.r], j.w.bufs[j.r]
	o := b.Options()
	lost := slices.DeleteFunc(seq(c.Size()), func(r int) bool { return slices.Contains(b.Ranks(), r) })
	s, err := solveWithout(problem(spread(j.w.tb, uint64(i+1), c.Size(), o), o.Hidden, 1, uint64(i)), o.Format, ref.ExpertFn, lost)
	if err != nil {
		return false, err
	}
	one, err := j.w.step(s, j.r, j.st)
	if err == nil {
		err = one.fused()
	}
	if err != nil && !errors.As(err, new(*moe.Error)) {
		j.w.tb.Fatal(err)
	}
	if err != nil {
		return false, err
	}
	told, err := c.AllGather(j.ctx, strconv.AppendBool(nil, j.told.Load()))
	over = err == nil
	for _, r := range b.Ranks() {
		over = over && string(told[r]) == "true"
	}
	return over, err
}

// recover returns with which problem all that are left go on.
func (j *job) recover(i int) int {
	for {
		ranks, err := j.w.bufs[j.r].Recover(j.ctx)
		if err == nil {
			var all [][]byte
			if all, err = j.w.comms[j.r].AllGather(j.ctx, strconv.AppendInt(nil, int64(i), 10)); err == nil {
				for _, r := range ranks {
					n, err := strconv.Atoi(string(all[r]))
					if err != nil {
						j.w.tb.Fatal(err)
					}
					i = max(i, n)
				}
				return i
			}
		}
		if j.ctx.Err() != nil {
			j.w.tb.Fatal(err)
		}
	}
}

// A rank that the others take for lost lives, and stores its tokens into the windows that it knows when the others have
// recovered. None of it comes into what they do.
func TestRecoverFromOneThatLives(t *testing.T) {
	o := moe.Options{MaxTokens: 5, Hidden: 64, TopK: 3, Experts: 9}
	for _, perNode := range []int{3, 1} {
		w := worldOf(t, 3, doorbell.Options{RanksPerNode: perNode, Log: quiet()}, o, one)
		var steps []*solved
		for i := range 30 {
			s, err := solveWithout(problem(spread(t, uint64(i+1), 3, o), o.Hidden, 5, uint64(i)), moe.BF16, ref.ExpertFn, []int{2})
			if err != nil {
				t.Fatal(err)
			}
			steps = append(steps, s)
		}
		var recovered sync.WaitGroup
		recovered.Add(2)
		err := each(3, func(r int) error {
			st := w.comms[r].Stream()
			defer st.Close()
			if r == 2 {
				expel(w.comms[2])
				recovered.Wait()
				s, err := w.step(steps[0], 2, st)
				if err == nil {
					err = s.startDispatch()
				}
				if err == nil && s.b.Wait(context.Background(), st) == nil && perNode == 1 {
					err = errors.New("it put to ranks that are out of its reach")
				}
				return err
			}
			err := w.recover(r, []int{0, 1})
			recovered.Done()
			for i := 0; i < len(steps) && err == nil; i++ {
				var s *step
				if s, err = w.step(steps[i], r, st); err == nil {
					err = s.fused()
				}
			}
			return err
		})
		if err != nil {
			t.Errorf("%d a node: %v", perNode, err)
		}
		w.close()
	}
}

// spread is a routing of all ranks' tokens.
func spread(tb testing.TB, seed uint64, ranks int, o moe.Options) *routing.Routing {
	g, err := routing.Generate(routing.Options{Seed: seed, Ranks: ranks, Experts: o.Experts, TopK: o.TopK, Tokens: o.MaxTokens, Uneven: true})
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

// expel has the others take a rank of this process for lost, which does not end it: it breaks the protocol.
func expel(c *doorbell.Comm) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for c.Lost()[(c.Rank()+1)%c.Size()] == nil {
		_, _ = c.AllGather(ended, nil)
	}
}
