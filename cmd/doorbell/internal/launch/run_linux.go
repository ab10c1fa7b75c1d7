// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// job is one run. All its fields belong to the goroutine in Run, save what pump reads.
type job struct {
	o      Options
	id     string   // of this launch
	name   string   // of the job: all hosts have the same
	path   string   // of the program
	base   []string // this process's environment
	token  string   // file with the secret; empty if DOORBELL_TOKEN has it
	stdout *sink
	stderr *sink
	ranks  []*rank
	events chan event

	phase  phase
	timer  *time.Timer // ends lingering, then ending
	first  *RankError
	cause  error // why the job ends, if not for a rank
	caught syscall.Signal
	stuck  int // seconds that something has outlived SIGKILL
}

type phase int

const (
	running   phase = iota
	lingering       // a rank failed; the others may still tell what they saw
	ending          // SIGTERM was sent to all
	killing         // SIGKILL was sent to all
)

// event is the end of a rank's process (status set) or of its output, or a failure to wait.
type event struct {
	r      *rank
	status *RankError
	err    error
}

// forwarded are the signals that ranks get when this process gets them.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// Run starts Options.N ranks, or this host's share of them, passes on their output and this process's signals, and returns when all are over.
//
// When a rank fails, that is ends with a signal or a status other than 0, or when ctx ends, all others get SIGTERM
// (after Options.Linger) and SIGKILL after Options.Grace. Whatever ranks started ends with them: their process groups,
// and any process that has our DOORBELL_LAUNCH_ID in its environment; so it is when this process is killed, if its main
// called Main. Output lines are prefixed with the rank.
//
// The first SIGINT or SIGTERM is only forwarded; the second ends the job as a failure does, the third kills it.
//
// It returns the exit code and, if that is not ExitOK, why: a *RankError is already on stderr. It blocks until the
// last process is reaped; from a failure on that takes at most Linger + 2 x Grace and a second. Several jobs may run at the same
// time, but each gets all signals.
func Run(ctx context.Context, o Options) (exit int, err error) {
	if code, err := o.check(); err != nil {
		return code, err
	}
	path, err := lookProgram(o.Program)
	if err != nil {
		return ExitUsage, err
	}
	j := &job{o: o, id: randomHex(8), path: path, base: os.Environ(),
		stdout: &sink{w: o.Stdout}, stderr: &sink{w: o.Stderr},
		events: make(chan event, 2*o.share())} // each rank sends two: nobody waits for us
	j.name = o.Job
	if o.Nodes > 1 {
		if j.name, err = o.SharedJob(); err != nil {
			return ExitUsage, err
		}
	} else if j.name == "" {
		j.name = j.id
	}
	j.token = o.TokenFile
	if j.token == "" && !o.given(j.base, "DOORBELL_TOKEN") && !o.given(j.base, "DOORBELL_TOKEN_FILE") {
		if j.token, err = newTokenFile(); err != nil {
			return ExitFailed, err
		}
		g := startGuard(j.id, j.token)
		defer g.stop()
		defer os.Remove(j.token)
	} else {
		defer startGuard(j.id, "").stop()
	}

	signals := make(chan os.Signal, 16)
	for _, s := range forwarded {
		if !signal.Ignored(s) { // nohup's choice is respected
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	j.timer = time.NewTimer(time.Hour)
	j.timer.Stop()
	defer j.timer.Stop()

	// The kernel sends the death signal when the starting *thread* ends, so one thread stays for the job's whole life.
	started, over := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- j.startAll()
		<-over
	}()
	defer close(over)
	code := ExitOK
	if err := <-started; err != nil {
		code, j.cause = startCode(err), err
		j.kill()
	}
	j.loop(ctx, signals)
	j.reap()
	switch {
	case code != ExitOK:
		return code, j.cause
	case j.first != nil:
		return ExitFailed, j.first
	case j.cause != nil:
		return ExitFailed, j.cause
	}
	return ExitOK, nil
}

// lookProgram finds the program before anything is started, and says what is wrong with it.
func lookProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrDot):
		return "", fmt.Errorf("program %q is in the current folder but not in PATH; say ./%s", name, name)
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("program %q is not in PATH", name)
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("program %q does not exist", name)
	case errors.Is(err, fs.ErrPermission):
		return "", fmt.Errorf("program %q is not executable", name)
	}
	return "", fmt.Errorf("program %q: %w", name, err)
}

// startCode tells a program that can't be executed, which is the caller's mistake, from a machine that has no room.
func startCode(err error) int {
	for _, e := range []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, e) {
			return ExitFailed
		}
	}
	return ExitUsage
}

// startAll runs on the thread that stays. A rank that was started is in j.ranks, also when it returns an error.
func (j *job) startAll() error {
	for n := j.o.first(); n < j.o.first()+j.o.share(); n++ {
		r, child, err := j.command(n)
		if err == nil {
			r.started = time.Now()
			if err = r.cmd.Start(); err != nil {
				err = fmt.Errorf("start rank %d of %q: %w", n, j.o.Program, errors.Unwrap(err))
			}
		}
		for _, f := range child {
			f.Close()
		}
		if err != nil {
			for _, f := range r.pipes {
				f.Close()
			}
			return err
		}
		r.pid = r.cmd.Process.Pid
		r.err = &lines{to: j.stderr, prefix: fmt.Sprintf("[%d] ", n)}
		j.ranks = append(j.ranks, r)
		go func() {
			j.pump(r)
			close(r.ended)
			j.events <- event{r: r}
		}()
		go func() {
			status, err := r.awaitExit()
			select { // what it said last should stand before our line about it, and be quoted there
			case <-r.ended:
			case <-time.After(100 * time.Millisecond): // something it started still holds its output
			}
			j.events <- event{r: r, status: status, err: err}
		}()
	}
	return nil
}

// loop runs until every rank is over and every stream has ended.
func (j *job) loop(ctx context.Context, signals <-chan os.Signal) {
	cancelled := ctx.Done()
	for !j.over() {
		select {
		case e := <-j.events:
			j.handle(e)
		case s := <-signals:
			j.forward(s.(syscall.Signal))
		case <-cancelled:
			cancelled = nil
			j.cause = fmt.Errorf("cancelled: %w", context.Cause(ctx))
			j.end()
		case <-j.timer.C:
			switch j.phase {
			case lingering:
				j.end()
			case running, ending: // running: the ranks are over, but something they left behind still holds their output
				j.kill()
			case killing:
				j.abandon()
			}
		}
	}
}

func (j *job) over() bool {
	if j.stuck > maxStuck {
		return true
	}
	for _, r := range j.ranks {
		if !r.exited || !r.drained {
			return false
		}
	}
	return true
}

func (j *job) live() (n int) {
	for _, r := range j.ranks {
		if !r.exited {
			n++
		}
	}
	return n
}

func (j *job) handle(e event) {
	if e.status == nil && e.err == nil {
		e.r.drained = true
		return
	}
	e.r.exited = true
	e.r.terminate() // whatever it started
	failed := e.err != nil || e.status.Code != 0
	if failed && j.first == nil && j.cause == nil {
		if e.err != nil {
			j.cause = e.err
		} else {
			var r *rank
			r, j.first = j.culprit(e.r, e.status)
			select {
			case <-r.ended: // so nobody writes r.err any more
				j.first.Detail = r.err.last
			default:
			}
			j.announce()
		}
	} else if j.first != nil && j.first.Signal == 0 && e.status != nil && e.status.Signal == syscall.SIGKILL && j.phase < killing {
		// None of ours yet: it was on its way out, its sockets closed, when another noticed and was heard of first.
		j.first = e.status
		j.announce()
	}
	switch {
	case failed && j.phase == running && j.live() > 0:
		if j.o.Linger > 0 {
			j.phase = lingering
			j.timer.Reset(j.o.Linger)
		} else {
			j.end()
		}
	case j.live() == 0 && j.phase < ending:
		j.phase = running
		j.timer.Reset(j.o.Grace)
	}
	if j.live() == 0 && !j.over() {
		signalMarked(j.id, syscall.SIGTERM) // what left its rank's group, and still holds its output
	}
}

// culprit is the rank that failed first. One that ends with a status may have done so because it found another lost, and
// be heard of before that other: a rank that a signal has ended, which is none of ours at the first failure, is the cause.
func (j *job) culprit(r *rank, status *RankError) (*rank, *RankError) {
	if status.Signal == 0 {
		for _, other := range j.ranks {
			if other.exited {
				continue
			}
			if s := other.killed(); s != nil {
				return other, s
			}
		}
	}
	return r, status
}

// announce says on stderr at once who failed; the rest may take a while to end.
func (j *job) announce() {
	what := ""
	if n := j.live(); n > 0 {
		what = fmt.Sprintf("; ending the other %d", n)
		if j.o.Nodes > 1 {
			what += " of this node"
		}
	}
	if j.caught != 0 {
		what += fmt.Sprintf(" (signal %d, %s, was forwarded)", int(j.caught), j.caught)
	}
	j.say("%v%s", j.first, what)
}

func (j *job) say(format string, args ...any) {
	fmt.Fprintf(j.stderr, j.o.Name+": "+format+"\n", args...)
}

func (j *job) forward(s syscall.Signal) {
	stop := s == syscall.SIGINT || s == syscall.SIGTERM
	switch {
	case stop && j.phase == ending:
		j.kill()
		return
	case stop && j.caught != 0:
		if j.cause == nil && j.first == nil {
			j.cause = fmt.Errorf("interrupted twice (signal %d, %s)", int(s), s)
		}
		j.end()
		return
	case s != syscall.SIGUSR1 && s != syscall.SIGUSR2:
		j.caught = s
	}
	for _, r := range j.ranks {
		if !r.exited {
			r.signal(s)
		}
	}
}

// end asks all to end, and arms the timer that kills.
func (j *job) end() {
	if j.phase >= ending {
		return
	}
	j.phase = ending
	for _, r := range j.ranks {
		r.terminate()
	}
	j.timer.Reset(j.o.Grace)
}

// kill ends all, and whatever left its group but still carries the launch's id.
func (j *job) kill() {
	if n := j.live(); n > 0 && j.phase == ending {
		j.say("%d ranks did not end within %s of SIGTERM; killed", n, seconds(j.o.Grace))
	}
	j.phase = killing
	for _, r := range j.ranks {
		r.signal(syscall.SIGKILL)
	}
	sweep(j.id)
	j.timer.Reset(time.Second)
}

// maxStuck is how long a process that SIGKILL does not end (the kernel holds it) is waited for, in seconds.
const maxStuck = 30

// abandon gives up on output that a process holds which we could not find or may not kill.
func (j *job) abandon() {
	if j.stuck++; j.stuck > maxStuck && j.live() > 0 && j.cause == nil {
		j.cause = fmt.Errorf("%d ranks did not end within %d s of SIGKILL", j.live(), maxStuck)
	}
	for _, r := range j.ranks {
		if !r.drained {
			for _, p := range r.pipes {
				p.SetReadDeadline(time.Unix(1, 0)) // wakes the reader, which closes it
			}
		}
	}
	j.timer.Reset(time.Second) // a process in the kernel's hands may take longer to die
}

// reap ends what is left of each group while its number is still ours, and then gives the number back.
func (j *job) reap() {
	for _, r := range j.ranks {
		r.signal(syscall.SIGKILL)
		if !r.exited {
			continue // see maxStuck
		}
		_ = r.cmd.Wait() // its status is known; there are no copies to wait for
	}
	sweep(j.id)
}
