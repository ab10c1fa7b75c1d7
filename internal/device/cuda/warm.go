// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"time"

	"github.com/doorbell-net/doorbell/gpu"
)

// errStuck is that a GPU does not do what is queued: what would wait for it is not called any more.
var errStuck = errors.New("it does nothing of what is queued")

// What warms lanes: a kernel that does nothing, copies of so many bytes, and a batch of copies where the driver has them.
const (
	warmName  = "DoorbellWarm"
	warmPTX   = ".version 6.0\n.target sm_70\n.address_size 64\n\n.visible .entry " + warmName + "()\n{\n\tret;\n}\n"
	warmBytes = 64 << 10
)

// warm has each lane do a kernel, copies of all directions and a batch, within a limit.
func (c *card) warm(lanes []*lane, limit time.Duration) error {
	var taken []discarded
	take := func(back function, at uintptr) uintptr {
		taken = append(taken, byCall(back, at))
		return at
	}
	err := c.queueWarm(lanes, take)
	if err == nil {
		if err = c.idleWithin(lanes, limit); errors.Is(err, errStuck) {
			return err // to give anything back would wait as well
		}
	}
	for _, d := range taken {
		err = errors.Join(err, c.free(d))
	}
	return err
}

// queueWarm queues that. take notes what is to be given back, and how.
func (c *card) queueWarm(lanes []*lane, take func(back function, at uintptr) uintptr) error {
	out := new(outs)
	if r := c.do(cuMemHostAlloc, out.at(0), warmBytes, hostFlags); r != success {
		return c.fault(cuMemHostAlloc, r, "%s asked for", size(warmBytes))
	}
	host := take(cuMemFreeHost, out.addr(0))
	if r := c.do(cuMemAlloc, out.at(1), 2*warmBytes); r != success {
		return c.fault(cuMemAlloc, r, "%s asked for", size(2*warmBytes))
	}
	here := take(cuMemFree, out.addr(1))
	code, err := c.link(warmName, warmPTX)
	if err != nil {
		return err
	}
	m := c.loadModule(warmName, code)
	if m.err != nil {
		return m.err
	}
	take(cuModuleUnload, m.handle)
	k := c.find(m, warmName)
	if k.err != nil {
		return k.err
	}
	for _, l := range lanes {
		if r := c.do(cuLaunchKernel, k.handle, 1, 1, 1, 1, 1, 1, 0, l.handle, 0, 0); r != success {
			return c.fault(cuLaunchKernel, r, "kernel %s", warmName)
		}
		for _, to := range [][2]uintptr{{here, host}, {host, here}, {here, here + warmBytes}} {
			if r := c.do(cuMemcpyAsync, to[0], to[1], warmBytes, l.handle); r != success {
				return c.fault(cuMemcpyAsync, r, "%s", size(warmBytes))
			}
		}
		if c.drv.batches() {
			const half = warmBytes / 2
			to, from := []gpu.Ptr[byte]{pointer(here), pointer(host + half)}, []gpu.Ptr[byte]{pointer(host), pointer(here + warmBytes)}
			if r := c.copies(new(copyAttributes), to, from, []uint64{half, half}, l); r != success {
				return c.fault(cuMemcpyBatchAsync, r, "%s each way", size(half))
			}
		}
	}
	return nil
}

// idleWithin waits until nothing is left to do on lanes that no stream has.
func (c *card) idleWithin(lanes []*lane, limit time.Duration) error {
	w := &waiter{}
	w.begin()
	for _, l := range lanes {
		for r := errNotReady; r != success; w.round() {
			if r = c.do(cuStreamQuery, l.handle); r != success && r != errNotReady {
				return c.fault(cuStreamQuery, r, "of a new stream")
			}
			if r == errNotReady && w.waited() > limit {
				return fmt.Errorf("cuda: GPU %d: an empty kernel and copies of %s on new streams did not end within %v, does another program hold it? %w",
					c.index, size(warmBytes), limit, errStuck)
			}
		}
	}
	return nil
}
