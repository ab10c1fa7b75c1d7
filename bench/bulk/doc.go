// SPDX-License-Identifier: Apache-2.0

// Package bulk has the benchmark kernels that are made of bulk copies.
package bulk
