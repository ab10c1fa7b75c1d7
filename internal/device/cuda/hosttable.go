// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"strings"
	"sync"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
)

// hostTable is the pinned memory that was taken or imported on a card, for kernels of a checked build (abi.HostTable). What other
// libraries pin is not in it, nor what ranks pinned on another GPU.
//
// A kernel never takes memory for the host's that is not, in whichever order it sees the words: those of a pair that is not used
// make no piece of memory with any of one that is, and no kernel sees two uses of a pair, since memory is given back when none runs.
type hostTable struct {
	mu    sync.Mutex
	pairs [hostPairs][2]uint64
	at    uintptr // of the table, pinned: 0 until a kernel asks for it
}

// hostPairs is one more than the pieces that there is room for. Of more than that, kernels know nothing.
const hostPairs = 256

func (t *hostTable) word(pair, i int) gpu.Ptr[uint64] {
	return gpu.Cast[uint64](pointer(t.at)).At(2*pair + i)
}

// set writes a pair, also where kernels look. mu is held.
func (t *hostTable) set(pair int, from, to uint64) {
	t.pairs[pair] = [2]uint64{from, to}
	if t.at != 0 {
		gpu.Store(t.word(pair, 0), from, gpu.Relaxed, gpu.ScopeSys)
		gpu.Store(t.word(pair, 1), to, gpu.Relaxed, gpu.ScopeSys)
	}
}

// add notes memory. forget is called when it has been given back.
func (t *hostTable) add(addr uintptr, bytes uint64) (forget func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, p := range t.pairs[:hostPairs-1] {
		if p[1] == 0 || p[0] == abi.HostNone {
			t.set(i, uint64(addr), uint64(addr)+bytes)
			return func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				t.set(i, abi.HostNone, 1)
			}
		}
	}
	return func() {}
}

// place makes the table, once.
func (t *hostTable) place(c *card) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at != 0 {
		return nil
	}
	const bytes = hostPairs * 16
	out := new(outs)
	if r := c.do(cuMemHostAlloc, out.at(0), bytes, hostFlags); r != success {
		return c.fault(cuMemHostAlloc, r, "%s asked for", size(bytes))
	}
	t.at = out.addr(0)
	for i, p := range t.pairs {
		if p[1] == 0 { // of none yet
			p[0] = abi.HostNone
		}
		t.set(i, p[0], p[1])
	}
	return nil
}

// hostLine is where PTX has the table's address.
const hostLine = ".u64 " + abi.HostTable

// bindHosts writes the address into the text of a checked build.
func (c *card) bindHosts(ptx string) (string, error) {
	if !strings.Contains(ptx, hostLine+";") {
		return ptx, nil
	}
	if err := c.hosts.place(c); err != nil {
		return "", err
	}
	return strings.Replace(ptx, hostLine+";", fmt.Sprintf("%s = %d;", hostLine, c.hosts.at), 1), nil
}
