// SPDX-License-Identifier: Apache-2.0

//go:build gpuc && !gdaki

package gin

// drivesNIC says whether kernels have the code that drives a NIC. For a GPU they have it with the tag gdaki alone: there it
// was compiled and never run, and kernels that can do both need more registers than those of the proxy have to spare.
const drivesNIC = false
