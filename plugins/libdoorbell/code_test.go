// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/internal/device/cuda"
)

// headerCodes is enum doorbell_code as the header has it.
func headerCodes(t *testing.T) map[string]int {
	t.Helper()
	header, err := os.ReadFile("../../include/doorbell.h")
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^  DOORBELL_(\w+) = (\d+)`).FindAllStringSubmatch(string(header), -1) {
		codes[m[1]], _ = strconv.Atoi(m[2])
	}
	return codes
}

// TestCodes: each kind of error has a code of its own, and each code stands for some. What ended a communicator tells more
// than what a call found of it, and that more than what it was called with.
func TestCodes(t *testing.T) {
	_, noFile := os.ReadFile(t.TempDir() + "/nothing")
	codes := headerCodes(t)
	untried := maps.Clone(codes)
	delete(untried, "REMOTE_ERROR") // of device calls alone
	for _, c := range []struct {
		err  error
		code string
	}{
		{nil, "OK"},
		{errors.New("something"), "FAILED"},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), "TIMEOUT"},
		{missing("comm"), "INVALID"},
		{fmt.Errorf("open: %w", doorbell.ErrInvalid), "INVALID"},
		{fmt.Errorf("barrier: %w", doorbell.ErrPeerLost), "PEER_LOST"},
		{errors.Join(doorbell.ErrPeerLost, doorbell.ErrCutOff), "CUT_OFF"},
		{errors.Join(doorbell.ErrPeerLost, doorbell.ErrAborted), "ABORTED"},
		{errors.Join(context.DeadlineExceeded, doorbell.ErrRevoked), "REVOKED"},
		{doorbell.ErrOutOfMemory, "OUT_OF_MEMORY"},
		{doorbell.ErrNotAvailable, "NOT_AVAILABLE"},
		{errors.Join(doorbell.ErrNotSupported, doorbell.ErrInvalid), "NOT_SUPPORTED"},
		{doorbell.ErrCannot, "CANNOT"},
		{doorbell.ErrClosed, "CLOSED"},
		{doorbell.ErrBusy, "BUSY"},
		{fmt.Errorf("needs: %w", doorbell.ErrDisagree), "DISAGREE"},
		{fmt.Errorf("register: %w", doorbell.ErrRefused), "REFUSED"},
		{fmt.Errorf("join: %w", doorbell.ErrDenied), "DENIED"},
		{fmt.Errorf("alloc: %w", &cuda.Error{Code: 999}), "DEVICE_FAILED"},
		{&doorbell.KernelError{}, "DEVICE_FAILED"},
		{noFile, "SYSTEM"},
		{fmt.Errorf("socket: %w", syscall.EACCES), "SYSTEM"},
		{guarded(func() error { panic("a mistake") }), "BROKEN"},
	} {
		want, ok := codes[c.code]
		if got := codeOf(c.err); !ok || got != want {
			t.Errorf("%v: code %d, want %s (%d)", c.err, got, c.code, want)
		}
		delete(untried, c.code)
	}
	if len(untried) > 0 {
		t.Errorf("no error has the codes %v", slices.Sorted(maps.Keys(untried)))
	}
}
