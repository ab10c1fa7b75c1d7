// SPDX-License-Identifier: Apache-2.0

package env

import "math"

// Who this process is and whom it meets. `doorbell run` sets these; other launchers have their own.
var (
	Rank      = intVar("DOORBELL_RANK", "", 0, math.MaxInt32, false, "this process's rank in the world")
	WorldSize = intVar("DOORBELL_WORLD_SIZE", "", 1, math.MaxInt32, false, "number of ranks in the world")
	LocalRank = intVar("DOORBELL_LOCAL_RANK", "", 0, math.MaxInt32, false, "this process's rank among those of its host")
	LocalSize = intVar("DOORBELL_LOCAL_SIZE", "", 1, math.MaxInt32, false, "number of ranks on this host")
	Addr      = stringVar("DOORBELL_ADDR", "", "HOST:PORT, or unix:PATH or unix:@NAME within one host", "where the ranks meet (rendezvous)")
	Job       = stringVar("DOORBELL_JOB", "", "any text without spaces", "job id, which keeps apart jobs that share an address")
)

// Trust. A value of Token is never printed.
var (
	Token        = stringVar("DOORBELL_TOKEN", "", "a secret text", "secret that proves a process to be of this job; never sent")
	TokenFile    = stringVar("DOORBELL_TOKEN_FILE", "", "a path to a file of mode 0600", "file that holds the secret, instead of DOORBELL_TOKEN")
	RequireToken = boolVar("DOORBELL_REQUIRE_TOKEN", "0", "refuse to run without a token")
)

// How the job runs.
var (
	RanksPerNode = intVar("DOORBELL_RANKS_PER_NODE", "", 1, math.MaxInt32, false, "cut each host into virtual nodes of so many ranks")
	Net          = stringVar("DOORBELL_NET", "auto", "auto, a plugin's name, or fault+NAME", "network plugin")
	Backend      = stringVar("DOORBELL_BACKEND", "auto", "", "who drives the network", "auto", "proxy", "gdaki")
	Device       = stringVar("DOORBELL_DEVICE", "auto", "", "compute device", "auto", "soft", "cuda")
	Progress     = stringVar("DOORBELL_PROGRESS", "auto", "", "who drives the proxy: its own thread, or whoever waits", "auto", "thread", "assisted")
	Timeout      = durationVar("DOORBELL_TIMEOUT", "100s", "deadline of every wait, on host and device, that has none of its own")
	QueueDepth   = intVar("DOORBELL_QUEUE_DEPTH", "1024", 2, 1<<16, true, "descriptors in a queue, per context and peer")
)

// LaunchGuard marks a process as the guard of a `doorbell run`, which tidies up when the launcher is killed. No person sets
// it; it is here so that every variable is.
var LaunchGuard = stringVar("DOORBELL_LAUNCH_GUARD", "", "a job id", "set by doorbell run for a helper process of its own")

// Tests and benchmarks.
var (
	Long = boolVar("DOORBELL_LONG", "0", "run the long tests too")
	Seed = uint64Var("DOORBELL_SEED", "", "seed of whatever is random in tests and benchmarks; not set: from the clock, and printed")
)
