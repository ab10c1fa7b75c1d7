// SPDX-License-Identifier: Apache-2.0

package devicetest

import "github.com/doorbell-net/doorbell/gpu"

// As the kernel compiler will write them.
var (
	CountKernel  = gpu.NewKernel("Count", Count, "")
	MeetKernel   = gpu.NewKernel("Meet", Meet, "")
	RoundsKernel = gpu.NewKernel("Rounds", Rounds, "")
	StepKernel   = gpu.NewKernel("Step", Step, "")
	GateKernel   = gpu.NewKernel("Gate", Gate, "")
	FailKernel   = gpu.NewKernel("Fail", Fail, "")
	FillKernel   = gpu.NewKernel("Fill", Fill, "")
)
