// SPDX-License-Identifier: Apache-2.0

// Command idle is a rank that has all it needs and does nothing for ten seconds; it prints what that took of a core.
package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/doorbell-net/doorbell"
)

func main() {
	doorbell.Main(4, func(ctx context.Context, c *doorbell.Comm) error {
		buf, err := c.Alloc(1 << 20)
		if err != nil {
			return err
		}
		if _, err := c.Register(ctx, buf); err != nil {
			return err
		}
		if _, err := c.DevComm(ctx, doorbell.Needs{Contexts: 8, Signals: 64}); err != nil {
			return err
		}
		c.Stream()
		before, start := cpu(), time.Now()
		<-time.After(10 * time.Second)
		_, err = fmt.Printf("percent %.3f\n", 100*(cpu()-before).Seconds()/time.Since(start).Seconds())
		return err
	})
}

// cpu is the processor time that this process has taken.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // it has no way to fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
