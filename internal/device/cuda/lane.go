// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"slices"
	"time"

	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// lane is a stream of the driver, with a line of pinned memory into which it stores how far it is. The driver lays streams
// onto hardware queues by rules of its own, and in one queue an item waits behind another stream's store of how far it is, and so
// behind that one's kernel. And the first kernel of a stream of its may wait for kernels that run (seen of driver 580 on an H200, where several
// threads launch at once: ranks that waited for each other stalled in one of two runs; none has since lanes have had one before).
// So lanes are laid when the card is opened, each of them has done a kernel and copies before anybody gets it, and they are used
// again: streams that come and go make none.
type lane struct {
	handle   uintptr
	priority int32
	at       uintptr // of the line
	done     *uint64 // items that are done: the line's first word
	begun    *uint64 // the last item that the GPU has come to, where launches say so (Options.Starts): the second
}

const (
	maxLanes  = 1024
	laidLeast = 4 // lanes for kernels that are laid when the card is opened, or
	laidEach  = 2 // so many for each rank on it,
	laidFast  = 2 // and those for each rank's copies: all together no more than there are hardware queues
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
	l, err := c.newLane(priority)
	if err != nil {
		return nil, err
	}
	if n := len(c.lanes); n == c.drv.connections+1 {
		c.log.Warn("more streams than hardware queues: a kernel may wait behind one of another stream, and two ranks whose kernels wait for each other then time out",
			"gpu", c.index, "streams", n, "queues", c.drv.connections, "variable", envConnections)
	}
	return l, nil
}

// newLane makes a lane. laneMu is held.
func (c *card) newLane(priority int32) (*lane, error) {
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
	c.lanes = append(c.lanes, l)
	return l, nil
}

// giveLane takes back a lane on which nothing is left to do.
func (c *card) giveLane(l *lane) {
	c.laneMu.Lock()
	defer c.laneMu.Unlock()
	c.spare = append(c.spare, l)
}

// layLanes makes lanes for so many ranks, and has each do a kernel and copies, within a limit. Nobody else uses the card yet.
func (c *card) layLanes(ranks int, limit time.Duration) error {
	c.laneMu.Lock()
	defer c.laneMu.Unlock()
	kernels := max(laidEach*ranks, laidLeast)
	for i := range min(kernels+laidFast*ranks, c.drv.connections) {
		priority := int32(0)
		if i >= kernels {
			priority = c.urgent
		}
		l, err := c.newLane(priority)
		if err != nil {
			return err
		}
		c.spare = append(c.spare, l)
	}
	return c.warm(c.spare, limit)
}
