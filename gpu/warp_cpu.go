// SPDX-License-Identifier: Apache-2.0

//go:build !gpuc && !lockstep

package gpu

// WarpSize is the number of lanes of a warp. It is a constant of the target, so that it may size arrays.
const WarpSize = 1
