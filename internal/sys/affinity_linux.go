// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CPUs lists the processors that this process may use, in order.
func CPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read affinity: %w", err)
	}
	var cpus []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus, nil
}

// Bind confines all threads of this process to the processors given, and those that they start.
func Bind(cpus ...int) error {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("bind to processors %v: %w", cpus, err)
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return fmt.Errorf("bind to processors %v: thread %q: %w", cpus, t.Name(), err)
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && err != unix.ESRCH { // a thread may have ended
			return fmt.Errorf("bind to processors %v: %w", cpus, err)
		}
	}
	return nil
}
