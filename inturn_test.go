// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/device"
)

// scarce is a device of which one call that takes memory fails: when left comes to 0.
type scarce struct {
	device.Device
	left *atomic.Int64
}

func (d scarce) short() error {
	if d.left.Add(-1) == 0 {
		return fmt.Errorf("no more: %w", ErrOutOfMemory)
	}
	return nil
}

func (d scarce) Alloc(n int) (device.Memory, error) {
	if err := d.short(); err != nil {
		return nil, err
	}
	return d.Device.Alloc(n)
}

func (d scarce) AllocHost(n int) (device.Memory, error) {
	if err := d.short(); err != nil {
		return nil, err
	}
	return d.Device.AllocHost(n)
}

func (d scarce) Import(h device.Handle) (device.Memory, error) {
	if err := d.short(); err != nil {
		return nil, err
	}
	return d.Device.Import(h)
}

// TestOutOfMemoryInTurn has each piece of memory in turn fail on one rank. What needed it fails there by its name and on the
// other rank too, all else works, and nothing is left when the ranks close: their devices would refuse.
func TestOutOfMemoryInTurn(t *testing.T) {
	for nth, reached := int64(1), true; reached; nth++ {
		comms, err := Local(2, Options{Timeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		d := scarce{comms[0].dev, new(atomic.Int64)}
		d.left.Store(nth)
		comms[0].dev, comms[0].infos.dev = d, d
		var errs [2]error
		var wg sync.WaitGroup
		for r, c := range comms {
			wg.Go(func() { errs[r] = takeAll(c) })
		}
		wg.Wait()
		if reached = d.left.Load() <= 0; reached && (!errors.Is(errs[0], ErrOutOfMemory) || errs[1] == nil) {
			t.Errorf("piece %d: rank 0 has %v, rank 1 %v", nth, errs[0], errs[1])
		} else if !reached {
			if err := errors.Join(errs[:]...); err != nil {
				t.Errorf("with enough memory: %v", err)
			}
			if nth < 12 {
				t.Errorf("only %d pieces were taken", nth-1)
			}
		}
		for r, c := range comms {
			wg.Go(func() { errs[r] = c.Close() })
		}
		wg.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			t.Errorf("piece %d: %v", nth, err)
		}
	}
}

// takeAll takes one of each thing that a communicator has. A rank that has no buffer says so to the others.
func takeAll(c *Comm) error {
	ctx := context.Background()
	var errs []error
	for _, alloc := range []func(int) (*Buffer, error){c.Alloc, c.AllocHost} {
		b, err := alloc(4096)
		errs = append(errs, err)
		_, err = c.Register(ctx, b)
		errs = append(errs, err)
	}
	_, err := c.RegisterSignals(ctx, 4)
	errs = append(errs, err)
	_, err = c.DevComm(ctx, Needs{Signals: 1, Barriers: 1})
	return errors.Join(append(errs, err)...)
}
