// SPDX-License-Identifier: Apache-2.0

// Package gpu, in its test files, holds bench/kernels on a GPU against the same kernels on the CPU, and keeps the
// C++ twins' arguments equal to Go's. run.sh measures.
package gpu
