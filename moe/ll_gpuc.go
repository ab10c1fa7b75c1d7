// SPDX-License-Identifier: Apache-2.0

package moe

import "github.com/doorbell-net/doorbell/gpu"

// The low-latency kernels as launch takes them.
var (
	LLCountKernel   = gpu.NewKernel("LLCount", LLCount, "")
	LLSendKernel    = gpu.NewKernel("LLSend", LLSend, "")
	LLReceiveKernel = gpu.NewKernel("LLReceive", LLReceive, "")
	LLReturnKernel  = gpu.NewKernel("LLReturn", LLReturn, "")
	LLCombineKernel = gpu.NewKernel("LLCombine", LLCombine, "")
	LLSignalsKernel = gpu.NewKernel("LLSignals", LLSignals, "")
)
