// SPDX-License-Identifier: Apache-2.0

//go:build gpuc || lockstep

package gpu

// WarpSize is the number of lanes of a warp.
const WarpSize = 32
