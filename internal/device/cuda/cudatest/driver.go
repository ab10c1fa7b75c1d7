// SPDX-License-Identifier: Apache-2.0

package cudatest

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/device/devicetest"
	"github.com/doorbell-net/doorbell/internal/device/soft"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// Driver is the double in a process.
type Driver struct {
	testing.TB
	Path string // of the library
	// Launched, if it is set before anything runs, is called for each kernel that comes to the head of its stream.
	Launched func(kernel string, args []byte)

	lib     *ffi.Library
	kernels map[string]bind
	dev     *soft.Device // runs them

	mu      sync.Mutex
	streams []device.Stream // of dev, free
	stop    chan struct{}
	server  sync.WaitGroup // takes kernels
	running sync.WaitGroup // kernels
}

// end holds that nothing was left or done that never may be.
func (d *Driver) end() {
	close(d.stop)
	d.server.Wait()
	d.running.Wait()
	for _, s := range d.streams {
		if err := s.Close(); err != nil {
			d.Error(err)
		}
	}
	if err := d.dev.Close(); err != nil {
		d.Error(err)
	}
	for _, what := range []string{"null stream", "waited", "memories", "handles", "graphs"} {
		if n := d.Count(what); n != 0 && !d.Failed() {
			d.Errorf("%s: %d at the end, want none", what, n)
		}
	}
}

// Ask calls a function of the double. Texts are passed as C strings.
func (d *Driver) Ask(name string, args ...any) uintptr {
	fn, err := d.lib.Symbol(name)
	if err != nil {
		d.Fatal(err)
	}
	c := ffi.Call{Fn: fn}
	for i, a := range args {
		switch a := a.(type) {
		case string:
			b := append([]byte(a), 0)
			c.Args[i] = ffi.Addr(&b[0])
			defer runtime.KeepAlive(b)
		case int:
			c.Args[i] = uintptr(a)
		case uintptr:
			c.Args[i] = a
		}
	}
	c.Do()
	return c.Result
}

// Set says what is there: how many "devices", "sms", ...
func (d *Driver) Set(what string, value int) { d.Ask("double_set", what, value) }

// FailCall has the nth call from now of a function return code.
func (d *Driver) FailCall(name string, nth, code int) { d.Ask("double_fail", name, nth, code) }

// Count is how often a function was called, or how many there are of what end looks at.
func (d *Driver) Count(what string) int { return int(d.Ask("double_count", what)) }

// Pause keeps kernels from being begun until the function that it returns is called.
func (d *Driver) Pause() (resume func()) {
	close(d.stop)
	d.server.Wait()
	return func() {
		d.stop = make(chan struct{})
		d.server.Go(d.serve)
	}
}

// Until waits until a count is what it shall be.
func (d *Driver) Until(what string, n int) {
	d.Helper()
	for start := time.Now(); d.Count(what) != n; runtime.Gosched() {
		if time.Since(start) > devicetest.Bound {
			d.Fatalf("%s: %d, want %d", what, d.Count(what), n)
		}
	}
}

// run runs a kernel and waits for it.
func (d *Driver) run(k launch) error {
	d.mu.Lock()
	var s device.Stream
	if n := len(d.streams); n > 0 {
		s, d.streams = d.streams[n-1], d.streams[:n-1]
	} else {
		s = d.dev.NewStream()
	}
	d.mu.Unlock()
	err := s.Launch(k.call, k.grid)
	if err == nil {
		err = s.Wait(context.Background()) // its waits have deadlines
	}
	if err != nil {
		return errors.Join(err, s.Close())
	}
	d.mu.Lock()
	d.streams = append(d.streams, s)
	d.mu.Unlock()
	return nil
}
