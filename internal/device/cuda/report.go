// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
)

// report says of each stream of the GPU on which something is left how far it is, in the order of ranks: where a wait came
// to its deadline, whose kernel it is that the others wait for.
func (c *card) report() string {
	all := c.all()
	slices.SortFunc(all, func(a, b *stream) int {
		return cmp.Or(cmp.Compare(a.dev.opt.Rank, b.dev.opt.Rank), cmp.Compare(a.lane.at, b.lane.at))
	})
	var lines []string
	for _, s := range all {
		if line := s.report(); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// report is one stream's, "" if nothing is left on it. It does not wait for who calls the driver: that may be what stands still.
func (s *stream) report() string {
	if !s.mu.TryLock() {
		return fmt.Sprintf("rank %d: a call of the driver for its stream is under way", s.dev.opt.Rank)
	}
	defer s.mu.Unlock()
	done := s.known()
	if done >= s.queued {
		return ""
	}
	text := fmt.Sprintf("rank %d: %d items left", s.dev.opt.Rank, s.queued-done)
	begun := atomic.LoadUint64(s.lane.begun)
	first := done
	if begun > done {
		first = begun - 1
	}
	name := ""
	if s.queued-first <= tracked {
		name = s.names[first%tracked]
	}
	switch {
	case name == "":
		return text
	case !s.dev.opt.Starts:
		return fmt.Sprintf("%s, kernel %s first; DOORBELL_CUDA_STARTS=1 says whether the GPU has come to it", text, name)
	case begun > done:
		return fmt.Sprintf("%s, the GPU has come to kernel %s", text, name)
	}
	return fmt.Sprintf("%s, the GPU has not come to kernel %s", text, name)
}
