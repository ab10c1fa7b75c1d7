// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"slices"

	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// lane is a stream of the driver, with a line of pinned memory into which it stores how far it is. The driver lays streams
// onto hardware queues as they are made, by rules of its own, and in one queue an item waits behind a kernel of another
// stream. So lanes are made as more are needed at once than ever before, and used again: while there are no more of them
// than queues, streams that come and go never share one.
type lane struct {
	handle   uintptr
	priority int32
	at       uintptr // of the line
	done     *uint64 // items that are done: the line's first word
	begun    *uint64 // the last item that the GPU has come to, where launches say so (Options.Starts): the second
}

const (
	maxLanes  = 1024
	lineBytes = 64
	begunAt   = 8 // of a line
)

// takeLane finds a lane of a priority on which nothing is left to do, or makes one. Its counts go on from the last
// stream's that had it: who still waits for that one's last item finds it done.
func (c *card) takeLane(priority int32) (*lane, error) {
	c.laneMu.Lock()
	defer c.laneMu.Unlock()
	if i := slices.IndexFunc(c.spare, func(l *lane) bool { return l.priority == priority }); i >= 0 {
		l := c.spare[i]
		c.spare = slices.Delete(c.spare, i, i+1)
		return l, nil
	}
	n := len(c.lanes)
	if n == maxLanes {
		return nil, fmt.Errorf("cuda: new stream: GPU %d has %d streams of this process, %d are accepted", c.index, n, maxLanes)
	}
	out := new(outs)
	if r := c.do(cuStreamCreateWithPriority, out.at(0), streamNonBlocking, uintptr(uint32(priority))); r != success {
		return nil, c.fault(cuStreamCreateWithPriority, r, "%d there", n)
	}
	at := c.marks + uintptr(n)*lineBytes
	words := ffi.Words(at, 2)
	l := &lane{handle: out.addr(0), priority: priority, at: at, done: &words[0], begun: &words[1]}
	if c.lanes = append(c.lanes, l); n == c.drv.connections {
		c.log.Warn("more streams than hardware queues: a kernel may wait behind one of another stream, and two ranks whose kernels wait for each other then time out",
			"gpu", c.index, "queues", n, "variable", envConnections)
	}
	return l, nil
}

// giveLane takes back a lane on which nothing is left to do.
func (c *card) giveLane(l *lane) {
	c.laneMu.Lock()
	defer c.laneMu.Unlock()
	c.spare = append(c.spare, l)
}
