// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"os"
	"strconv"
)

// What the driver reads from its environment when it starts.
const (
	// Streams share so many hardware queues. In one queue, a copy waits behind a kernel of another stream that waits for it.
	envConnections = "CUDA_DEVICE_MAX_CONNECTIONS"
	maxConnections = 32
	minConnections = 8
	// Lazy loading loads a kernel when it is first launched, and that waits for kernels that run.
	envLoading = "CUDA_MODULE_LOADING"
	// With this each launch waits for its kernel: ranks that wait for one another never run together.
	envBlocking = "CUDA_LAUNCH_BLOCKING"
)

// setEnvironment sets what the driver must know before cuInit, and says how many hardware queues streams have. Values that
// somebody gave stay, or are refused.
func setEnvironment() (connections int, err error) {
	if v := os.Getenv(envBlocking); v != "" && v != "0" {
		return 0, fmt.Errorf("cuda: %s=%s: 0 is accepted, or nothing: with it each launch waits for its kernel, and kernels of ranks that wait for one another never run together", envBlocking, v)
	}
	connections = maxConnections
	if v := os.Getenv(envConnections); v == "" {
		if err := os.Setenv(envConnections, strconv.Itoa(maxConnections)); err != nil {
			return 0, fmt.Errorf("cuda: set %s: %w", envConnections, err)
		}
	} else if connections, err = strconv.Atoi(v); err != nil || connections < minConnections || connections > maxConnections {
		return 0, fmt.Errorf("cuda: %s=%s: %d to %d are accepted: with fewer, a copy may wait behind a kernel that waits for it", envConnections, v, minConnections, maxConnections)
	}
	if v := os.Getenv(envLoading); v == "" {
		if err := os.Setenv(envLoading, "EAGER"); err != nil {
			return 0, fmt.Errorf("cuda: set %s: %w", envLoading, err)
		}
	} else if v != "EAGER" {
		return 0, fmt.Errorf("cuda: %s=%s: EAGER is accepted: otherwise the first launch of a kernel waits for those that run", envLoading, v)
	}
	return connections, nil
}
