// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"slices"
	"sync"
)

// notifier calls the registered functions one at a time, in the order of events, from a goroutine that lives only while
// there is something to call: an idle group has none. All methods are called with the group's lock held.
type notifier struct {
	onEpoch    []func(uint32, []int)
	onLost     []func(int, error)
	onDeparted []func(int)
	queue      []func()
	running    bool
	stopped    bool
}

func (n *notifier) epoch(mu *sync.Mutex, d decision) {
	for _, f := range n.onEpoch {
		n.add(mu, func() { f(d.epoch, slices.Clone(d.lost)) })
	}
}

func (n *notifier) lost(mu *sync.Mutex, rank int, cause error) {
	for _, f := range n.onLost {
		n.add(mu, func() { f(rank, cause) })
	}
}

func (n *notifier) departed(mu *sync.Mutex, rank int) {
	for _, f := range n.onDeparted {
		n.add(mu, func() { f(rank) })
	}
}

func (n *notifier) add(mu *sync.Mutex, call func()) {
	if n.stopped {
		return
	}
	n.queue = append(n.queue, call)
	if !n.running {
		n.running = true
		go n.run(mu)
	}
}

// run is not waited for by Close, which may be called from within a call.
func (n *notifier) run(mu *sync.Mutex) {
	for {
		mu.Lock()
		if len(n.queue) == 0 {
			n.running = false
			mu.Unlock()
			return
		}
		call := n.queue[0]
		n.queue = n.queue[1:]
		mu.Unlock()
		call()
	}
}

func (n *notifier) stop() {
	n.stopped = true
	n.queue = nil
}
