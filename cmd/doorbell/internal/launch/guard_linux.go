// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/doorbell-net/doorbell/internal/env"
)

// A launcher that is killed can clean up nothing. The kernel then ends its ranks (parent death signal), but neither what
// they started nor the token file. So a small second process, the guard, reads a pipe from the launcher: when that ends,
// the launcher is dead, and the guard does the rest.

// guardable is set once the program's main is known to call Main.
var guardable bool

// Main must be called first in the main of a program that calls Run. In a guard process it does not return.
func Main() {
	if id, err := env.LaunchGuard.Get(nil); err == nil {
		guardMain(id)
		os.Exit(0)
	}
	guardable = true
}

type guard struct {
	cmd *exec.Cmd
	say *os.File
}

// startGuard starts the guard, or returns nil where it can't: then only a killed launcher's grandchildren are at stake.
func startGuard(id, token string) *guard {
	if !guardable {
		return nil
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil
	}
	defer pr.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args[0] = "doorbell-guard"
	cmd.Env = []string{env.LaunchGuard.Name() + "=" + id, "GOMAXPROCS=1"}
	cmd.Stdin = pr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if _, err := pw.WriteString(token + "\n"); err != nil || cmd.Start() != nil {
		pw.Close()
		return nil
	}
	return &guard{cmd: cmd, say: pw}
}

// stop ends the guard, once nothing is left for it to do.
func (g *guard) stop() {
	if g == nil {
		return
	}
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	g.say.Close() // only now, since its end is what the guard waits for
}

func guardMain(id string) {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	said, err := io.ReadAll(io.LimitReader(os.Stdin, 64<<10))
	if err != nil {
		return
	}
	token, _, _ := strings.Cut(string(said), "\n")
	sweep(id)
	if strings.HasPrefix(filepath.Base(token), "doorbell-token-") {
		os.Remove(token)
	}
}

// sweep kills every process of this host, and of this user, that has the launch's id in its environment.
func sweep(id string) {
	for range 10 { // again if some were found: they may have forked meanwhile
		if !signalMarked(id, unix.SIGKILL) {
			return
		}
	}
}

// signalMarked sends a signal to each process that has the launch's id in its environment, and says whether there was one.
// It is not the job's id: launchers of several hosts of one job may share this kernel, each in a container.
func signalMarked(id string, s unix.Signal) (found bool) {
	mark := []byte(env.LaunchID.Name() + "=" + id + "\x00")
	dir, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() || !marked(pid, mark) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if marked(pid, mark) { // the number may have got a new owner before we held it
			found = unix.PidfdSendSignal(fd, s, nil, 0) == nil || found
		}
		unix.Close(fd)
	}
	return found
}

func marked(pid int, mark []byte) bool {
	vars, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	at := bytes.Index(vars, mark)
	return at == 0 || at > 0 && vars[at-1] == 0
}
