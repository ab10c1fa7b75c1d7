// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rank is one started process, the leader of its own process group.
type rank struct {
	n       int
	cmd     *exec.Cmd
	pid     int
	started time.Time
	pipes   []*os.File    // our ends of its output
	err     *lines        // its stderr; nil when that is raw
	exited  bool          // but not reaped: as long as it is a zombie, its group's number is not given to anyone else
	drained bool          // its output has ended, so nobody of its group can write any more
	ended   chan struct{} // closed when its output has ended
}

// sigCldExited and the two behind it are si_code values of SIGCHLD.
const (
	sigCldExited = 1
	sigCldDumped = 3
)

// awaitExit blocks until the process is over and leaves it a zombie.
func (r *rank) awaitExit() (*RankError, error) {
	var si unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, r.pid, &si, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("wait for rank %d (pid %d): %w", r.n, r.pid, err)
		}
	}
	return r.statusOf(&si), nil
}

// killed says how the rank ended if a signal has ended it, whether or not awaitExit's word has come; nil if not.
func (r *rank) killed() *RankError {
	var si unix.Siginfo
	err := unix.Waitid(unix.P_PID, r.pid, &si, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	if err != nil || si.Signo == 0 || si.Code == sigCldExited {
		return nil
	}
	return r.statusOf(&si)
}

func (r *rank) statusOf(si *unix.Siginfo) *RankError {
	status := int(childStatus(si))
	e := &RankError{Rank: r.n, Pid: r.pid, Code: status, After: time.Since(r.started)}
	if si.Code != sigCldExited {
		e.Code, e.Signal, e.CoreDump = -1, syscall.Signal(status), si.Code == sigCldDumped
	}
	return e
}

// signal reaches every process of the rank's group. It may fail only because nobody is there any more.
func (r *rank) signal(s syscall.Signal) {
	_ = syscall.Kill(-r.pid, s)
}

// terminate asks the group to end; a stopped process would not hear it, so it is continued.
func (r *rank) terminate() {
	r.signal(syscall.SIGTERM)
	r.signal(syscall.SIGCONT)
}

// command makes the rank's process, with pipes for its output. Call closeChildEnds after Start, whether it worked or not.
func (j *job) command(n int) (*rank, []*os.File, error) {
	r := &rank{n: n, cmd: exec.Command(j.path, j.o.Args...), ended: make(chan struct{})}
	r.cmd.Args[0] = j.o.Program
	r.cmd.Env = j.o.environ(j.base, n, j.id, j.name, j.token)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if n == 0 && j.o.Stdin != nil {
		r.cmd.Stdin = j.o.Stdin
	}
	var child []*os.File
	pipe := func() (*os.File, error) {
		pr, pw, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("pipe for rank %d: %w", n, err)
		}
		r.pipes = append(r.pipes, pr)
		child = append(child, pw)
		return pw, nil
	}
	out, err := pipe()
	if err != nil {
		return r, child, err
	}
	r.cmd.Stdout = out
	if n == 0 && j.o.RawStderr != nil {
		r.cmd.Stderr = j.o.RawStderr
		return r, child, nil
	}
	errw, err := pipe()
	if err != nil {
		return r, child, err
	}
	r.cmd.Stderr = errw
	return r, child, nil
}

// pump copies the rank's output to where it belongs and returns when all of it has ended.
func (j *job) pump(r *rank) {
	prefix := fmt.Sprintf("[%d] ", r.n)
	done := make(chan struct{}, len(r.pipes))
	for i, p := range r.pipes {
		var to io.Writer
		switch {
		case i == 0 && r.n == 0 && j.o.RawStdout != nil:
			to = &sink{w: j.o.RawStdout}
		case i == 0:
			to = &lines{to: j.stdout, prefix: prefix}
		default:
			to = r.err
		}
		go func() {
			// A read error means that we closed the pipe on a process that we could not end; writes never fail.
			_, _ = io.Copy(to, p)
			if l, ok := to.(*lines); ok {
				_ = l.Close()
			}
			p.Close()
			done <- struct{}{}
		}()
	}
	for range r.pipes {
		<-done
	}
}
