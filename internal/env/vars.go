// SPDX-License-Identifier: Apache-2.0

package env

import "math"

// Who this process is and whom it meets. `doorbell run` sets these; other launchers have their own.
var (
	Rank      = intVar("DOORBELL_RANK", "", 0, math.MaxInt32, false, "this process's rank in the world")
	WorldSize = intVar("DOORBELL_WORLD_SIZE", "", 1, math.MaxInt32, false, "number of ranks in the world")
	LocalRank = intVar("DOORBELL_LOCAL_RANK", "", 0, math.MaxInt32, false, "this process's rank among those of its host")
	LocalSize = intVar("DOORBELL_LOCAL_SIZE", "", 1, math.MaxInt32, false, "number of ranks on this host")
	Addr      = stringVar("DOORBELL_ADDR", "", "HOST:PORT, or file:/PATH on storage that all hosts share, or unix:PATH or unix:@NAME within one host", "where the ranks meet (rendezvous)")
	Job       = stringVar("DOORBELL_JOB", "", "any text without spaces", "job id, which keeps apart jobs that share an address")
)

// Which of a job's hosts this one is: what `doorbell run` and bench take for --nodes and --node-rank where the flags are
// not given, so that one line serves all hosts. Ranks do not get them.
var (
	Nodes    = intVar("DOORBELL_NODES", "", 1, math.MaxInt32, false, "number of hosts that take part, for doorbell run and bench")
	NodeRank = intVar("DOORBELL_NODE_RANK", "", 0, math.MaxInt32, false, "which of the hosts this is, for doorbell run and bench")
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
	Faults       = stringVar("DOORBELL_FAULTS", "", "seed=N, all, reorder[=PERCENT] and others, with commas between: see package netplugin/fault", "what a network that is wrapped by fault does wrong, for tests")
	Interfaces   = stringVar("DOORBELL_INTERFACES", "", "names or beginnings of names, =NAME, networks as 10.1.0.0/16; ^ before one excludes it; commas between", "network interfaces to use; not set: all that are up")
	TCPLanes     = intVar("DOORBELL_TCP_LANES", "4", 1, 16, false, "most interfaces that the tcp network uses together to reach one peer")
	TrafficClass = intVar("DOORBELL_TRAFFIC_CLASS", "0", 0, 255, false, "traffic class (DSCP and ECN) of the network's packets")
	Backend      = stringVar("DOORBELL_GIN_BACKEND", "auto", "", "who drives the network", "auto", "proxy", "gdaki")
	NIC          = stringVar("DOORBELL_NIC", "", "a provider's name", "NIC that kernels drive; not set: a real one that all ranks have, else with backend gdaki softnic, an emulated one")
	Device       = stringVar("DOORBELL_DEVICE", "auto", "", "compute device", "auto", "soft", "cuda")
	LocalGPUs    = intVar("DOORBELL_LOCAL_GPUS", "1", 1, 64, false, "GPUs that the ranks of a program that runs all of them are dealt to (Local, --local)")
	Progress     = stringVar("DOORBELL_PROGRESS", "auto", "", "who drives the proxy: its own thread, or whoever waits", "auto", "thread", "assisted")
	Timeout      = durationVar("DOORBELL_TIMEOUT", "100s", "deadline of every wait, on host and device, that has none of its own")
	QueueDepth   = intVar("DOORBELL_QUEUE_DEPTH", "1024", 2, 1<<16, true, "descriptors in a queue, per context and peer")
)

// CUDAStarts is for who looks for a kernel that never began.
var CUDAStarts = boolVar("DOORBELL_CUDA_STARTS", "0", "have each launch on a GPU say that the GPU has come to it, for the errors of waits that time out")

// Multimem is off unless somebody asks for it.
var Multimem = boolVar("DOORBELL_MULTIMEM", "0", "use NVLink multicast for windows (Needs.Multimem on a GPU); it can put GPUs out of service where their fabric is not set up for it, and has run on none")

// LaunchID marks what one `doorbell run` started on its host. Unlike the job's id, which all hosts share, it is never
// there twice: two launchers of one job may run on one host, and neither may end what the other started.
var LaunchID = stringVar("DOORBELL_LAUNCH_ID", "", "any text without spaces", "set by doorbell run, which finds by it what its ranks have left behind")

// LaunchGuard marks a process as the guard of a `doorbell run`, which tidies up when the launcher is killed. No person sets
// it; it is here so that every variable is.
var LaunchGuard = stringVar("DOORBELL_LAUNCH_GUARD", "", "a launch id", "set by doorbell run for a helper process of its own")

// Tests and benchmarks.
var (
	Long = boolVar("DOORBELL_LONG", "0", "run the long tests too")
	GPUs = boolVar("DOORBELL_CUDA_TEST", "0", "run the tests that need an NVIDIA GPU too")
	Far  = boolVar("DOORBELL_SOFT_FAR", "0", "have the software device keep its memory from the host, as a GPU does, to try without one what such memory needs")
	Seed = uint64Var("DOORBELL_SEED", "", "seed of whatever is random in tests and benchmarks; not set: from the clock, and printed")
)
