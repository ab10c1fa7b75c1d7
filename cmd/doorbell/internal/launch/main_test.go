// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary is also the ranks, and the launcher where that has to be killed: LAUNCH_TEST says which part it plays.
const roleVar = "LAUNCH_TEST"

func TestMain(m *testing.M) {
	Main()
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or each rank ends a second late under -race
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(play(role, os.Getenv("DOORBELL_RANK")))
	}
	os.Exit(m.Run())
}

func play(role, rank string) int {
	role, arg, _ := strings.Cut(role, ":")
	switch role {
	case "env":
		for _, kv := range os.Environ() {
			if strings.HasPrefix(kv, "DOORBELL_") {
				fmt.Println(kv)
			}
		}
		if f := os.Getenv("DOORBELL_TOKEN_FILE"); f != "" {
			b, err := os.ReadFile(f)
			st, _ := os.Stat(f)
			fmt.Printf("token %d bytes, mode %v, %v\n", len(bytes.TrimSpace(b)), st.Mode(), err)
		}
	case "bytes":
		os.Stdout.WriteString("a\x00\xff\x80b\n\r\xfe no newline")
		os.Stderr.WriteString("to stderr\n")
	case "exit": // one rank ends with a status, once the others are there
		if rank == "2" {
			fmt.Fprintln(os.Stderr, "doorbell: bad \x1b weather")
			return 7
		}
		hang()
	case "die":
		if rank == "1" {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		hang()
	case "deaf": // rank 0 fails when rank 1 ignores SIGTERM for sure
		signal.Ignore(syscall.SIGTERM)
		if rank == "1" {
			os.WriteFile(arg, nil, 0o600)
			hang()
		}
		for { // the file is the event; a launcher's bug would end this test by its own deadline
			if _, err := os.Stat(arg); err == nil {
				return 1
			}
			time.Sleep(time.Millisecond) // sleep: between two looks at the event, which another process makes
		}
	case "signal": // says when it hears one, and ends well
		c := make(chan os.Signal, 1)
		signal.Notify(c, forwarded...)
		fmt.Println("ready", os.Getpid())
		fmt.Println("heard", <-c)
	case "hang":
		hang()
	case "stopped":
		if rank == "0" {
			syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		}
		return 3
	case "parents": // leaves one child in its group, and one in a session of its own
		for i, attr := range []*syscall.SysProcAttr{{}, {Setsid: true}} {
			c := exec.Command("/proc/self/exe")
			c.Env = append(os.Environ(), roleVar+"=hang")
			c.SysProcAttr = attr
			if i == 1 {
				c.Stdout = os.Stdout
			}
			if err := c.Start(); err != nil {
				fmt.Println(err)
				return 1
			}
			fmt.Println("pid", c.Process.Pid)
		}
		fmt.Println("pid", os.Getpid())
		if arg == "wait" {
			hang()
		}
	case "stdin":
		s := bufio.NewScanner(os.Stdin)
		for s.Scan() {
			fmt.Println("read", s.Text())
		}
	case "second": // rank 0 is done at once; rank 1 lives on for long after rank 0's launcher is done
		if rank == "1" {
			time.Sleep(700 * time.Millisecond) // sleep: nothing may happen to it
		}
	case "meet": // all ranks connect to rank 0, rank arg dies when they have, and the others say that it is lost
		return meet(rank, arg)
	case "launcher": // launches ranks that play arg
		n, part, _ := strings.Cut(arg, ",")
		ranks, _ := strconv.Atoi(n)
		code, err := Run(context.Background(), Options{N: ranks, Program: "/proc/self/exe", Env: []string{roleVar + "=" + part}, Grace: time.Minute})
		fmt.Println("launcher", code, err)
		return code
	default:
		fmt.Println("no such role:", role)
		return 99
	}
	return 0
}

// hang ends with the first SIGTERM; a test that loses it is ended by its own deadline.
func hang() {
	time.Sleep(time.Minute) // sleep: a rank that does nothing until it is ended
}
