// SPDX-License-Identifier: Apache-2.0

package kernels

import "github.com/doorbell-net/doorbell/gpu"

// The kernels as launch takes them.
var (
	FillKernel      = gpu.NewKernel("Fill", Fill, "")
	CheckKernel     = gpu.NewKernel("Check", Check, "")
	SignalsKernel   = gpu.NewKernel("Signals", Signals, "")
	PingPongKernel  = gpu.NewKernel("PingPong", PingPong, "")
	BandwidthKernel = gpu.NewKernel("Bandwidth", Bandwidth, "")
	RateKernel      = gpu.NewKernel("Rate", Rate, "")
	AllToAllKernel  = gpu.NewKernel("AllToAll", AllToAll, "")
)
