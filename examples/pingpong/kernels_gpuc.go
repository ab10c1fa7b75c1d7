// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/doorbell-net/doorbell/gpu"

// Kernel as launch takes it.
var Kernel = gpu.NewKernel("PingPong", PingPong, "")
