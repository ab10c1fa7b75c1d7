// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
)

// TestHandlesEndWithTheirCommunicator, and are of one kind each.
func TestHandlesEndWithTheirCommunicator(t *testing.T) {
	comm, other := handles.add(&rank{}, 0, nil), handles.add(&rank{}, 0, nil)
	buffer := handles.add(&doorbell.Buffer{}, comm, nil)
	if _, owner, err := find[*doorbell.Buffer](buffer); err != nil || owner != comm {
		t.Errorf("a buffer of %d is of %d (%v)", comm, owner, err)
	}
	if _, _, err := find[*doorbell.DevComm](buffer); !errors.Is(err, errInvalid) || !strings.Contains(err.Error(), "a buffer, want a device communicator") {
		t.Errorf("a buffer taken for a device communicator: %v", err)
	}
	handles.drop(comm)
	if _, _, err := find[*doorbell.Buffer](buffer); !errors.Is(err, errInvalid) {
		t.Errorf("a buffer of a communicator that is closed: %v", err)
	}
	if _, _, err := find[*rank](other); err != nil {
		t.Errorf("another communicator: %v", err)
	}
	handles.drop(other)
}

// TestWhatKernelsGetIsPinned: memory that only C knows of stays until its handle is dropped.
func TestWhatKernelsGetIsPinned(t *testing.T) {
	freed := make(chan struct{})
	handle := func() uint64 {
		memory := make([]byte, 1<<16)
		runtime.AddCleanup(&memory[0], func(freed chan struct{}) { close(freed) }, freed)
		pins := new(runtime.Pinner)
		pin(pins, reflect.ValueOf(gin.Window{Base: gpu.PtrOf(memory).Byte(4096), Size: 100}))
		return handles.add("memory", 0, pins)
	}()
	for range 5 {
		runtime.GC()
	}
	select {
	case <-freed:
		t.Fatal("memory of a window that C holds was freed")
	default:
	}
	handles.drop(handle)
	runtime.GC()
	select {
	case <-freed:
	case <-time.After(limit):
		t.Error("memory of a window that was dropped is still pinned")
	}
}
